"""The page of a view: the report's page, with a line that says whether it is live, and the script that keeps it so."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib import resources

from coterie.reporting.report.page import page
from coterie.watching.view import View


def live_page(view: View, stamp: str) -> str:
    """Return the page of a view, which asks for what changed since its stamp."""
    line = (
        f'<p id="live" role="status" data-since="{escape(stamp)}"><span class="dot" aria-hidden="true"></span>'
        '<span class="said">This page was made once; with scripts it follows the run.</span></p>'
    )
    icon = '<link rel="icon" href="data:,">'
    return page(
        view.title, view.sections, head=f"{icon}<style>{_file('live.css')}</style>", top=line, script=_file("live.js")
    )


@cache
def _file(name: str) -> str:
    return resources.files("coterie.watching").joinpath(name).read_text()
