"""Sections of a report, and the page that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Section:
    """A part of a page: its id, its title, and its body as HTML."""

    id: str
    title: str
    body: str


def page(title: str, sections: Sequence[Section], *, head: str = "", top: str = "", script: str = "") -> str:
    """Return a page of sections."""
    parts = "".join(
        f'<section id="{escape(each.id)}"><h2>{escape(each.title)}</h2>{each.body}</section>' for each in sections
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>{head}</head>'
        f"<body><h1>{escape(title)}</h1>{top}<main>{parts}</main><script>{script}</script></body></html>"
    )
