"""The figures of a report as files: PNG for slides, SVG for papers, CSV for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.errors import UsageError
from coterie.files import write_atomically
from coterie.reporting.figures.marks import Figure
from coterie.reporting.figures.printed import draw
from coterie.reporting.plots import svg
from coterie.reporting.report.collecting import Content
from coterie.reporting.report.parts import all_figures
from coterie.reporting.report.verdicts import verdicts_of_content


def save_figures(content: Content, folder: Path) -> int:
    """Write every figure of a report into a folder, and return their number."""
    return save_each(all_figures(content, verdicts_of_content(content)), folder)


def save_each(figures: Sequence[Figure], folder: Path) -> int:
    """Write figures into a folder under their ids, and return their number."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"figures cannot be written to {folder}: {error.strerror}; name another folder") from None
    for figure in figures:
        drawing = draw(figure)
        drawing.savefig(folder / f"{figure.id}.png", dpi=150)
        write_atomically(folder / f"{figure.id}.svg", svg(drawing).encode())
        write_atomically(folder / f"{figure.id}.csv", figure.csv().encode())
    return len(figures)
