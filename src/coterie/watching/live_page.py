"""The page of a view: the report's page, with a line that says whether it is live, and the script that keeps it so."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from coterie.reporting.markup import element
from coterie.reporting.report.page import Section, page


def live_page(title: str, sections: Sequence[Section], stamp: str) -> str:
    """Return the page of a view, which asks for what changed since its stamp."""
    words = element("span", "This page was made once; with scripts it follows the run.", class_="said")
    dot = element("span", class_="light", aria_hidden="true")
    line = element("p", dot, words, id="live", role="status", data_since=stamp)
    return page(title, sections, top=line, style=_file("live.css"), script=_file("live.js"))


@cache
def _file(name: str) -> str:
    return resources.files("coterie.watching").joinpath(name).read_text()
