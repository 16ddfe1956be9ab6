"""``coterie reproduce``: a table or figure of a paper by one command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import Quiet, guarded, resumed_by
from coterie.errors import UsageError
from coterie.terminal import console, say

if TYPE_CHECKING:
    from coterie.reproducing.planning import Plan


@guarded
def reproduce(
    target: Annotated[str | None, typer.Argument(metavar="PAPER:TABLE", help="e.g. thesis:3.1, ocfl:fig3")] = None,
    listed: Annotated[bool, typer.Option("--list", help="list the tables and figures")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="a smaller version: fewer rounds, clients and seeds")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and its time, run nothing")] = False,
    cells: Annotated[
        list[str] | None,
        typer.Option(help="only cells whose name (column/method/measure) has this in it; * is anything; repeatable"),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="runs at a time (default: the cores)")] = None,
    data_file: Annotated[
        list[str] | None, typer.Option(help="a file of a data set that cannot be fetched: pathmnist=PATH")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for runs and pages; all tables share their runs")] = Path(
        "runs/reproduce"
    ),
    quiet: Quiet = False,
) -> None:
    """Make a table or figure of a paper again: ours beside the published numbers, as HTML and Markdown.

    A finished run in --out is not run again, and an unfinished one is resumed.
    """
    from coterie.reproducing.catalogue import all_ids, find_experiment
    from coterie.reproducing.drawing import check_kinds
    from coterie.reproducing.planning import make_plan

    if listed:
        for each in all_ids():
            say(f"{each:<14} {find_experiment(each).title}")
        return
    if target is None:
        raise UsageError("no table is named; write PAPER:TABLE, such as thesis:3.1 (--list shows all)")
    experiment = find_experiment(target)
    check_kinds(experiment.figures)
    plan = make_plan(experiment, quick, cells or (), _files(data_file or ()))
    number = jobs or _cores()
    _print_plan(plan, out, number, each_cell=dry_run)
    if not dry_run:
        _run(plan, out, number, quiet)


def _files(given: Sequence[str]) -> dict[str, str]:
    """Read the files of data sets, each as NAME=PATH."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not Path(path).expanduser().exists():
            raise UsageError(f"data-file is {text!r}; write NAME=PATH of an existing file: pathmnist=path.npz")
        found[name] = str(Path(path).expanduser())
    return found


def _cores() -> int:
    from coterie.engine.plan import available_cores

    return available_cores()


def _print_plan(plan: Plan, out: Path, jobs: int, each_cell: bool) -> None:
    """Print the cells, the data and the runs of a plan, and the time that they take."""
    from coterie.reporting.durations import duration
    from coterie.reproducing.costs import estimated_seconds
    from coterie.reproducing.planning import data_needed
    from coterie.reproducing.running import numbers_of
    from coterie.reproducing.view import plan_table

    told, runs = plan.experiment, plan.runs()
    say(f"{told.id}: {told.title}{' (quick)' if plan.quick else ''}")
    say(f"source: {told.source}")
    for sentence in filter(None, (told.quick.said if plan.quick else "", told.note)):
        say(sentence)
    for name, state in data_needed(plan).items():
        say(f"data {name}: {state}")
    if each_cell and plan.cells:
        console.print(plan_table(plan))
    todo = [run for run in runs if numbers_of(run, out) is None]
    seconds = sum(estimated_seconds(run.settings) for run in todo)
    lacking = sum(bool(cell.missing) for cell in plan.cells)
    finished, together = len(runs) - len(todo), duration(seconds / min(jobs, max(len(todo), 1)))
    say(f"{len(plan.cells)} cells ({lacking} cannot be filled), {len(runs)} runs, {finished} of them finished")
    say(f"estimated: {duration(seconds)} of one core, {together} with {jobs} {'job' if jobs == 1 else 'jobs'}")


def _run(plan: Plan, out: Path, jobs: int, quiet: bool) -> None:
    """Make the runs of a plan and write its page."""
    from coterie.reporting.overall import overall
    from coterie.reproducing.drawing import draw
    from coterie.reproducing.page import MARK, make_page, save_page
    from coterie.reproducing.results import collect
    from coterie.reproducing.running import run_all

    with resumed_by("the same command", out), overall(quiet or not plan.cells) as report:
        wrong = run_all(plan.runs(), out, jobs, report)
    found = collect(plan, out, wrong)
    path = save_page(make_page(plan, found, draw(plan, found, out)), plan, out)
    compared = [one for one in found if one.beyond is not None]
    if found:
        say(f"{sum(bool(one.values) for one in found)} of {len(found)} cells filled")
    if compared:
        say(f"{sum(bool(one.beyond) for one in compared)} of {len(compared)} compared cells are marked {MARK}")
    say(f"page: {path}, and {path.with_suffix('.md').name}")
    for name, problem in wrong.items():
        say(f"run {name} failed: {problem}", "yellow")
