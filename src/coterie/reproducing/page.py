"""The page of a table or figure, in Markdown and as one HTML file: ours, published, difference, interval, reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from coterie.files import write_atomically
from coterie.reporting.html_tables import sortable_table, table
from coterie.reporting.markup import Markup, element, join
from coterie.reproducing.planning import Plan, data_needed, settings_in_words
from coterie.reproducing.results import Found, order_agreement
from coterie.terminal import plain

MARK = "≠"
HEADS = ("method", "measure", "ours", "published", "difference", "95 % interval", "seeds", "mark", "reason")

QUICK = "quick"
"""The reason of every difference of the quick version, which comes before the numbered ones."""

MANY = 12
"""A table of more rows can be sorted and searched."""


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, a table of texts, sentences below it, and pictures."""

    heading: str
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    picture: Markup | None = None


@dataclass(frozen=True)
class Page:
    """A page: title, paragraphs, sections, and the command that makes it again."""

    title: str
    paragraphs: tuple[str, ...]
    sections: tuple[Section, ...]
    command: str


def make_page(plan: Plan, found: Sequence[Found], pictures: Mapping[str, Markup]) -> Page:
    """Return the page of a plan; ``pictures`` are by the name of a column, or of several together."""
    told = plan.experiment
    used = sorted({place for one in found for place in _reasons(plan, one)})
    tables = {name: list(group) for name, group in groupby(found, key=lambda one: one.cell.column.name)}
    alone = [Section(name, picture=text) for name, text in pictures.items() if name not in tables]
    sections = [_section(plan, name, group, pictures.get(name)) for name, group in tables.items()]
    return Page(
        f"{told.id}: {told.title}" + (" (quick)" if plan.quick else ""),
        tuple(_paragraphs(plan, found, [told.reasons[place].text for place in used], used)),
        (*alone, *sections),
        plan.command,
    )


def _paragraphs(plan: Plan, found: Sequence[Found], reasons: Sequence[str], used: Sequence[int]) -> Iterator[str]:
    """Yield what is said before the tables."""
    told, same = plan.experiment, settings_in_words(plan)
    yield f"Source: {told.source}."
    if plan.quick:
        yield f"This is the quick version, not the paper's: {told.quick.said}"
    if told.note:
        yield told.note
    if same:
        yield "The same in all runs: " + ", ".join(f"{name} = {value}" for name, value in same.items()) + "."
    yield from (f"Data {name}: {state}." for name, state in data_needed(plan).items() if "--data-file" in state)
    if found:
        yield _in_numbers(found)
    if any(one.beyond is not None for one in found):
        yield (
            f"{MARK}: the difference is beyond two standard errors of both means and the rounding of the print (a "
            "published number without a deviation counts as exact)."
        )
    if plan.quick and any(one.beyond for one in found):
        yield f"Reason {QUICK}: fewer rounds, clients and examples; compare the order of the methods, not the numbers."
    yield from (f"Reason {place + 1}: {text}" for place, text in zip(used, reasons, strict=True))


def _in_numbers(found: Sequence[Found]) -> str:
    filled, compared = sum(bool(one.values) for one in found), [one for one in found if one.beyond is not None]
    marked = f" {sum(bool(one.beyond) for one in compared)} of {len(compared)} that can be compared are marked."
    between = ", with Student's interval over them" if any(one.interval() for one in found) else ""
    said = f"{filled} of {len(found)} cells have a number: the mean over our seeds{between}."
    return said + (marked if compared else " No difference is marked: that needs two seeds and a published number.")


def _section(plan: Plan, name: str, found: Sequence[Found], picture: Markup | None) -> Section:
    rows = tuple(_row(plan, one) for one in found)
    return Section(name, rows, tuple(_orders(found)), picture)


def _orders(found: Sequence[Found]) -> Iterator[str]:
    """Yield how the order of the methods agrees with the published one, for each measure."""
    for measure in dict.fromkeys(one.cell.measure.name for one in found):
        mine = [one for one in found if one.cell.measure.name == measure]
        agreement = order_agreement(mine)
        if agreement is not None:
            count = sum(one.cell.printed is not None and one.ours is not None for one in mine)
            yield f"Order of {count} methods by {measure}, ours against published: rank correlation {agreement:.2f}."


def _reasons(plan: Plan, one: Found) -> list[int]:
    """Return the numbers of the reasons for a marked difference."""
    if not one.beyond:
        return []
    known = enumerate(plan.experiment.reasons)
    return [
        place
        for place, reason in known
        if reason.holds(one.cell.row, one.cell.column) and not (plan.quick and reason.paper)
    ]


def _row(plan: Plan, one: Found) -> tuple[str, ...]:
    printed, interval = one.cell.printed, one.interval()
    theirs = "" if printed is None else f"{printed.mean:g}" + ("" if printed.std is None else f" ± {printed.std:g}")
    numbered = [str(place + 1) for place in _reasons(plan, one)]
    reasons = [QUICK, *numbered] if plan.quick and one.beyond else numbered
    return (
        one.cell.row.label(),
        one.cell.measure.name,
        "none" if one.ours is None else number(one.ours),
        theirs,
        "" if one.difference is None else f"{one.difference:+.3g}",
        "" if interval is None else " to ".join(map(number, interval)),
        str(len(one.values)),
        MARK if one.beyond else "",
        one.missing or ", ".join(reasons),
    )


def number(value: float) -> str:
    """Return a number as tables show it.

    >>> number(86.0831), number(0.95833)
    ('86.08', '0.958')
    """
    return f"{value:.2f}" if abs(value) >= 2 else f"{value:.3f}"


def as_markdown(page: Page) -> str:
    """Return a page as Markdown; pictures are in the HTML page."""
    parts = [f"# {page.title}", *map(plain, page.paragraphs), f"Again: `{page.command}`"]
    for section in (each for each in page.sections if each.rows):
        lines = [_line(HEADS), _line(["---"] * len(HEADS)), *map(_line, section.rows)]
        parts += [f"## {plain(section.heading)}", "\n".join(lines), *section.notes]
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(plain(cell).replace("|", "\\|") for cell in cells) + " |"


def as_html(page: Page) -> str:
    """Return a page as one HTML file that needs no other; it looks like the report of a run."""
    from coterie.reporting.report import page as report

    said = join([element("p", each) for each in page.paragraphs])
    again = element("p", "Again: ", element("code", page.command))
    parts = [
        report.Section("verdict", "What this is", join([said, again])),
        *(report.Section(f"s{place}", each.heading, _body(each)) for place, each in enumerate(page.sections)),
    ]
    return report.page(page.title, parts)


def _body(section: Section) -> Markup:
    make = sortable_table if len(section.rows) > MANY else table
    shown = make(HEADS, section.rows, section.heading, 2) if section.rows else None
    return join([section.picture, shown, [element("p", each) for each in section.notes]])


def save_page(page: Page, plan: Plan, out: Path) -> Path:
    """Write a page as Markdown and HTML into the output folder; return the path of the HTML file."""
    paper, _, name = plan.experiment.id.rpartition(":")
    stem = f"{Path(paper).stem}-{name}{'-quick' if plan.quick else ''}{'-part' if plan.patterns else ''}"
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{stem}.md", as_markdown(page).encode())
    write_atomically(out / f"{stem}.html", as_html(page).encode())
    return out / f"{stem}.html"
