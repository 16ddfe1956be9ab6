"""Pieces of HTML for a live page, with every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from coterie.terminal import line


class Html(NamedTuple):
    """A text that is HTML already."""

    text: str


Words = str | int | float | Html | None


def html(words: Words) -> str:
    r"""Return a text as HTML, on one line; HTML stays as it is.

    >>> html("<b>\n"), html(Html("<b>")), html(None)
    ('&lt;b&gt;\\n', '<b>', '')
    """
    return words.text if isinstance(words, Html) else "" if words is None else escape(line(words))


def paragraph(*words: Words, kind: str = "") -> Html:
    """Return a paragraph."""
    mark = f' class="{escape(kind)}"' if kind else ""
    return Html(f"<p{mark}>{''.join(map(html, words))}</p>")


def strong(words: Words) -> Html:
    """Return words that matter."""
    return Html(f"<strong>{html(words)}</strong>")


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Words]]) -> Html:
    """Return a table; the first cell of each row is its head. It scrolls by itself where it is too wide."""
    top = "".join(f'<th scope="col">{html(each)}</th>' for each in heads)
    body = "".join(
        f'<tr><th scope="row">{html(first)}</th>{"".join(f"<td>{html(each)}</td>" for each in rest)}</tr>'
        for first, *rest in rows
    )
    label = escape(caption, quote=True)
    return Html(
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table><caption>{html(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Iterable[tuple[str, Words]]) -> Html:
    """Return names and values, without those that are not known."""
    said = "".join(
        f"<div><dt>{html(name)}</dt><dd>{html(value)}</dd></div>" for name, value in pairs if value is not None
    )
    return Html(f'<dl class="facts">{said}</dl>')


def bullets(lines: Iterable[Words]) -> Html:
    """Return lines as a list."""
    return Html(f"<ul>{''.join(f'<li>{html(each)}</li>' for each in lines)}</ul>")


def bar(label: str, done: int, total: int) -> Html:
    """Return a bar of progress."""
    return Html(f'<progress aria-label="{escape(label, quote=True)}" value="{done}" max="{max(total, 1)}"></progress>')


def ago(seconds: float, shown: str) -> Html:
    """Return a moment, in seconds since 1970, that the page keeps showing as the time since then."""
    return Html(f'<time data-ago="{seconds:.0f}">{html(shown)}</time>')


def until(seconds: float, shown: str) -> Html:
    """Return a moment, in seconds since 1970, that the page keeps showing as the time until then."""
    return Html(f'<time data-until="{seconds:.0f}">{html(shown)}</time>')
