"""The commands of ``coterie data``."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import PAPER, guarded, settings_from, with_settings
from coterie.experiments.settings import OWN, Settings, make_settings
from coterie.terminal import console, say, tell

STYLES = {"problem": "red", "warning": "yellow"}
"""How the findings of a check are shown."""

data_app = typer.Typer(no_args_is_help=True, help="Fetch data, look at who holds what, check your own.")


@data_app.command("fetch")
@guarded
def data_fetch(names: Annotated[list[str], typer.Argument(help="data sets, see coterie list data")]) -> None:
    """Fetch, verify and cache data sets."""
    from coterie.data import fetch

    for name in names:
        fetch(name, report=tell)
        say(f"{name} is ready")


@data_app.command("check")
@guarded
@with_settings(PAPER, *(f.name for f in fields(Settings) if f.name not in (*OWN, "seed")))
def data_check(path: Annotated[str, typer.Argument(help="your folder or file")], **given: Any) -> None:
    """List every problem of your own data at once, with remedies, what is suspicious, and what each client has.

    Nothing is written. Warnings are no errors: the exit code is 2 only if there are problems.
    """
    from coterie.data import check_files
    from coterie.reporting.check_view import holdings_table

    found = check_files(path, **make_settings({**given, "algorithm": "fedavg", "data": path}).reading())
    for line in found.facts():
        say(line)
    if found.holdings:
        console.print(holdings_table(found))
    for line in found.findings():
        say(line, STYLES.get(line.partition(":")[0]))
    if not found.good:
        raise typer.Exit(2)


@data_app.command("show")
@guarded
@with_settings("data", "model", "clusters")
def data_show(
    name: Annotated[str, typer.Argument(help="a data set, a folder or a file")],
    picture: Annotated[Path | None, typer.Option(help="draw it into this PNG file")] = None,
    **given: Any,
) -> None:
    """Show who holds what under a partition, as tables and, with --picture, as a PNG."""
    from coterie.experiments.building import build_data
    from coterie.reporting.data_view import client_table, facts, group_table, save_holdings

    data = build_data(settings_from("fedavg", {**given, "data": name}))
    groups = group_table(data)
    if groups is not None:
        console.print(groups)
    console.print(client_table(data, console))
    for line in facts(data):
        say(line)
    if picture is not None:
        save_holdings(picture, data)
        say(f"picture: {picture}")
