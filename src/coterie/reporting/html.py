"""Pieces of HTML for notebooks: tables that line up, with every text escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from rich.table import Table


def html_table(table: Table) -> str:
    """Return a table of the terminal as HTML, the bold cells bold, with its caption below."""
    heads = "".join(f"<th>{escape(str(column.header))}</th>" for column in table.columns)
    cells = zip(*(list(column.cells) for column in table.columns), strict=True)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in cells)
    caption = escape(str(table.caption or "")).replace("\n", "<br>")
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table><p>{caption}</p>"


def html_pairs(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Return names and values as a table with a title."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in pairs)
    return f"<p><b>{escape(title)}</b></p><table><tbody>{rows}</tbody></table>"


def _cell(value: object) -> str:
    text = escape(str(value))
    return f"<td><b>{text}</b></td>" if getattr(value, "style", "") == "bold" else f"<td>{text}</td>"
