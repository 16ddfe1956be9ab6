"""The page of a table or figure, in Markdown and as one HTML file: ours, published, difference, interval, reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from coterie.files import write_atomically
from coterie.reproducing.planning import Plan, settings_in_words
from coterie.reproducing.results import Found
from coterie.terminal import plain

MARK = "≠"
HEADS = ("method", "measure", "ours", "published", "difference", "95 % interval", "seeds", "mark", "reason")

STYLE = """:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;
padding:0 1rem}table{border-collapse:collapse;display:block;overflow-x:auto}th,td{padding:.2rem .6rem;text-align:left;
border-bottom:1px solid #8884;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}
svg{max-width:100%;height:auto;background:#fff}"""

NUMBERS = range(2, 7)
"""The columns of numbers, which are set flush right."""


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, a table of texts, and a picture as SVG."""

    heading: str
    rows: tuple[tuple[str, ...], ...]
    picture: str = ""


@dataclass(frozen=True)
class Page:
    """A page: title, paragraphs and sections."""

    title: str
    paragraphs: tuple[str, ...]
    sections: tuple[Section, ...]


def make_page(plan: Plan, found: Sequence[Found], pictures: dict[str, str] | None = None) -> Page:
    """Return the page of a plan; ``pictures`` are SVGs by the name of a column."""
    told, drawn = plan.experiment, pictures or {}
    reasons = [each.text for each in told.reasons]
    used = sorted({place for one in found for place in _reasons(plan, one)})
    sections = [
        Section(name, tuple(_row(plan, one) for one in group), drawn.get(name, ""))
        for name, group in groupby(found, key=lambda one: one.cell.column.name)
    ]
    return Page(
        f"{told.id}: {told.title}" + (" (quick)" if plan.quick else ""),
        (
            f"Source: {told.source}.",
            *((f"This is the quick version, not the paper's: {told.quick.said}",) if plan.quick else ()),
            *((told.note,) if told.note else ()),
            "The same in all runs: " + ", ".join(f"{k} = {v}" for k, v in settings_in_words(plan.runs()).items()) + ".",
            f"Ours is the mean over seeds, the interval is Student's over seeds. {MARK}: the difference is beyond two "
            "standard errors of both means (a published number without a deviation counts as exact).",
            *(f"Reason {place + 1}: {reasons[place]}" for place in used),
            f"Again: coterie reproduce {told.id}{' --quick' if plan.quick else ''}",
        ),
        tuple(sections),
    )


def _reasons(plan: Plan, one: Found) -> list[int]:
    """Return the numbers of the reasons for a marked difference."""
    if not one.beyond:
        return []
    known = enumerate(plan.experiment.reasons)
    return [place for place, reason in known if reason.holds(one.cell.row, one.cell.column)]


def _row(plan: Plan, one: Found) -> tuple[str, ...]:
    printed, interval = one.cell.printed, one.interval()
    theirs = "" if printed is None else f"{printed.mean:g}" + ("" if printed.std is None else f" ± {printed.std:g}")
    reasons = ", ".join(str(place + 1) for place in _reasons(plan, one))
    return (
        one.cell.row.label(),
        one.cell.measure.name,
        "none" if one.ours is None else number(one.ours),
        theirs,
        "" if one.difference is None else f"{one.difference:+.4g}",
        "" if interval is None else " to ".join(map(number, interval)),
        str(len(one.values)),
        MARK if one.beyond else "",
        one.missing or reasons,
    )


def number(value: float) -> str:
    """Return a number as tables show it.

    >>> number(86.0831), number(0.95833)
    ('86.08', '0.958')
    """
    return f"{value:.2f}" if abs(value) >= 2 else f"{value:.3f}"


def as_markdown(page: Page) -> str:
    """Return a page as Markdown."""
    parts = [f"# {page.title}", *page.paragraphs]
    for section in page.sections:
        lines = [_line(HEADS), _line(["---"] * len(HEADS)), *map(_line, section.rows)]
        parts += [f"## {section.heading}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(plain(cell).replace("|", "\\|") for cell in cells) + " |"


def as_html(page: Page) -> str:
    """Return a page as one HTML file that needs no other."""
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in HEADS)
    body = [f"<h1>{escape(page.title)}</h1>", *(f"<p>{escape(each)}</p>" for each in page.paragraphs)]
    for section in page.sections:
        rows = "".join(f"<tr>{''.join(map(_cell, range(len(row)), row))}</tr>" for row in section.rows)
        body.append(f"<h2>{escape(section.heading)}</h2>{section.picture}")
        body.append(f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>")
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(page.title)}</title>'
    )
    return f'<!doctype html><html lang="en"><head>{head}</title><style>{STYLE}</style></head>\n{"".join(body)}</html>\n'


def _cell(place: int, text: str) -> str:
    return f"<td{' class=n' if place in NUMBERS else ''}>{escape(text)}</td>"


def save_page(page: Page, plan: Plan, out: Path) -> Path:
    """Write a page as Markdown and HTML into the output folder; return the path of the HTML file."""
    name = plan.experiment.id.rpartition("/")[2].replace(":", "-") + ("-quick" if plan.quick else "")
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{name}.md", as_markdown(page).encode())
    write_atomically(out / f"{name}.html", as_html(page).encode())
    return out / f"{name}.html"
