"""``coterie report``: one page about a run or a comparison, and its figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import guarded
from coterie.terminal import say


@guarded
def report(
    target: Annotated[Path, typer.Argument(metavar="RUN|COMPARISON", help="a folder that run or compare has made")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="the page (default: report.html in the folder)")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="also write every figure there, as PNG, SVG and CSV")] = None,
) -> None:
    """Write a report: one HTML page that needs no network and no other file. Runs may be unfinished."""
    from coterie.reporting.report.collecting import collect
    from coterie.reporting.report.page import save_report

    content = collect(target)
    path = out or target / "report.html"
    save_report(content, path)
    say(f"report: {path} ({path.stat().st_size / 1e6:.2f} MB)")
    if figures is not None:
        from coterie.reporting.report.figure_files import save_figures

        say(f"figures: {save_figures(content, figures)} as PNG, SVG and CSV in {figures}")
