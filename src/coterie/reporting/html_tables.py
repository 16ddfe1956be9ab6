"""Tables of a page: they scroll on a narrow screen, and one with many rows can be sorted and searched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.reporting.markup import Child, Markup, element, join

Cell = str | tuple[str, float | None]
"""A text, or a text with the number by which it is sorted; None sorts last."""


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], label: str, left: int = 1) -> Markup:
    """Return a table with a name for those who cannot see it; the first ``left`` columns are words, not numbers."""
    titles = (element("th", head, scope="col") for head in heads)
    return _scrolling(label, element("table", element("thead", element("tr", titles)), _body(rows, left)))


def sortable_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], label: str, left: int = 1) -> Markup:
    """Return a table with a search field and a button in every head that sorts by its column."""
    titles = (element("th", element("button", head, type="button", data_sort=True), scope="col") for head in heads)
    field = element(
        "label", "Search ", element("input", type="search", data_search=True, autocomplete="off"), class_="search"
    )
    count = element("span", f"{len(rows)} of {len(rows)}", class_="count", role="status")
    inner = element("table", element("thead", element("tr", titles)), _body(rows, left))
    return element("div", field, count, _scrolling(label, inner), class_="searchable")


def _scrolling(label: str, inner: Markup) -> Markup:
    return element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=label)


def _body(rows: Iterable[Sequence[Cell]], left: int) -> Markup:
    return element("tbody", (element("tr", (_cell(each, i < left) for i, each in enumerate(row))) for row in rows))


def _cell(cell: Cell, is_word: bool) -> Markup:
    if isinstance(cell, str):
        return element("td", cell, class_="word" if is_word else None)
    words, number = cell
    return element("td", words, data_value="" if number is None else f"{number:.8g}")


def pairs(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Return names and values as a list."""
    return element("dl", (join([element("dt", name), element("dd", value)]) for name, value in rows), class_="pairs")
