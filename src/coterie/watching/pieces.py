"""Pieces of a live page: tables, facts, a bar of progress, and moments that the page keeps counting from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.reporting.markup import Markup, element
from coterie.terminal import line

Words = str | int | float | None
"""What a cell or a sentence may hold; Markup, which is a text, stays as it is."""


def said(words: Words) -> str | None:
    """Return words as a text of one line; markup stays as it is."""
    return words if words is None or isinstance(words, Markup) else line(words)


def paragraph(*words: Words, kind: str | None = None) -> Markup:
    """Return a paragraph.

    >>> paragraph("1 < ", strong(2))
    '<p>1 &lt; <strong>2</strong></p>'
    """
    return element("p", map(said, words), class_=kind)


def strong(words: Words) -> Markup:
    """Return words that matter."""
    return element("strong", said(words))


def code(words: str) -> Markup:
    """Return words that are typed as they are."""
    return element("code", said(words))


def late(words: str) -> Markup:
    """Return words about somebody who is late."""
    return element("span", said(words), class_="late")


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Words]]) -> Markup:
    """Return a table; the first cell of each row is its head. It scrolls by itself where it is too wide."""
    top = element("tr", (element("th", said(each), scope="col") for each in heads))
    body = (
        element(
            "tr", element("th", said(first), scope="row"), (element("td", said(each), class_="word") for each in rest)
        )
        for first, *rest in rows
    )
    inner = element("table", element("caption", caption), element("thead", top), element("tbody", body), class_="words")
    return element("div", inner, class_="scroll", role="region", aria_label=caption, tabindex=0)


def facts(pairs: Iterable[tuple[str, Words]]) -> Markup:
    """Return names and values, without those that are not known."""
    known = [(name, value) for name, value in pairs if value is not None]
    shown = (element("div", element("dt", name), element("dd", said(value))) for name, value in known)
    return element("dl", shown, class_="facts")


def bullets(lines: Iterable[Words]) -> Markup:
    """Return lines as a list."""
    return element("ul", (element("li", said(each)) for each in lines))


def bar(label: str, done: int, total: int) -> Markup:
    """Return a bar of progress."""
    return element("progress", aria_label=label, value=done, max=max(total, 1))


def ago(seconds: float, shown: str) -> Markup:
    """Return a moment, in seconds since 1970, that the page keeps showing as the time since then."""
    return element("time", shown, data_ago=round(seconds))


def until(seconds: float, shown: str) -> Markup:
    """Return a moment, in seconds since 1970, that the page keeps showing as the time until then."""
    return element("time", shown, data_until=round(seconds))
