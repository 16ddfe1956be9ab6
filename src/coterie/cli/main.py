"""The command line. Its words are the library's words.

Modules that take long to import are imported by the commands that use them, so that help is there at once.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import MutableMapping
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from coterie.cli.data import data_app
from coterie.cli.models import export, predict
from coterie.cli.options import (
    AsJson,
    Earlier,
    Last,
    Out,
    Quiet,
    each_settings_from,
    guarded,
    resumed_by,
    settings_from,
    with_settings,
)
from coterie.cli.report import report
from coterie.cli.reproduce import reproduce
from coterie.cli.watch import watch
from coterie.terminal import TOLD, console, say, say_json, tell

if TYPE_CHECKING:
    import click

    from coterie.data import Federated
    from coterie.experiments.apart import Apart
    from coterie.experiments.settings import Settings


class _Federate(TyperGroup):
    """The commands of ``coterie federate``, imported when one of them is asked for."""

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        """Return the commands by name."""
        if not self._known:
            self._known |= typer.main.get_group(import_module("coterie.cli.federate").federate_app).commands
        return self._known

    @commands.setter
    def commands(self, known: MutableMapping[str, click.Command]) -> None:
        self._known = dict(known)


app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__.partition("\n")[0]
)
app.add_typer(data_app, name="data")
app.add_typer(
    typer.Typer(cls=_Federate, no_args_is_help=True, help="The same algorithm on a real federation, over Flower."),
    name="federate",
)


@guarded
def _print_version(asked: bool) -> None:
    """Print the installed version and end, before any other option is read."""
    if asked:
        say(f"coterie {metadata.version('coterie')}")
        raise typer.Exit


@app.callback()
def _before_every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """Take the options that may stand before a command."""


@app.command("list")
@guarded
def list_names(name: Annotated[str | None, typer.Argument(help="a catalogue or one name")] = None) -> None:
    """Show what there is: algorithms, data, partitions, models, metrics, clusterers, or a NAME with its arguments."""
    from coterie.reporting import listing

    if name is None or name in listing.CATALOGUES:
        for which in listing.CATALOGUES if name is None else [name]:
            console.print(listing.overview(which))
            console.print()
    else:
        console.print(listing.entry(name))


@app.command()
@guarded
@with_settings()
def run(
    target: Annotated[str, typer.Argument(metavar="ALGORITHM|FILE.toml", help="e.g. 'wecfl(shots=10)'")],
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="resume the run in --out")] = False,
    earlier: Earlier = None,
    last: Last = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Run one algorithm, from flags or from an experiment file (flags override the file)."""
    from coterie.experiments.run import run_settings
    from coterie.experiments.summary import add_shown, check_last
    from coterie.experiments.warm_start import load_earlier, rounds_before, with_rounds
    from coterie.reporting.progress import watch_with_references
    from coterie.tracking.track import track

    settings = settings_from(target, given)
    check_last(last, settings.rounds)
    folder, begun = out or _fresh(settings, resume), None if earlier is None else load_earlier(Path(earlier))
    data = _own_data(settings, quiet)
    shown = with_rounds(settings, rounds_before(folder, resume, begun))
    resumed = resumed_by(f"the same command with --resume --out {folder}", folder)
    with resumed, watch_with_references(shown, quiet=quiet) as (progress, show):
        result = run_settings(settings, folder, resume, progress, data, show=show, earlier=begun, track=track)
    if begun is not None:
        tell(begun.note(result.data.names))
    summary = add_shown(result.summary, result.history, last)
    if as_json:
        say_json(summary)
        return
    _print_run(summary, folder)
    say(f"results are in {folder}")


@app.command()
@guarded
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    last: Last = None,
    top: Annotated[int, typer.Option(min=1, help="how many differences of each cluster are shown")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show a finished run again: its scores, its clusters, and what sets them apart."""
    from coterie.experiments.run_folder import load_rounds, load_summary, no_finished_run
    from coterie.experiments.summary import add_shown

    found = load_summary(run)
    if found is None:
        raise no_finished_run(run)
    summary = add_shown(found, load_rounds(run), last)
    if as_json:
        apart = _apart(run)
        say_json(summary if apart is None else {**summary, "apart": asdict(apart)})
        return
    _print_run(summary, run, top)


@app.command()
@guarded
@with_settings("seed")
def compare(
    algorithms: Annotated[list[str], typer.Argument(metavar="ALGORITHM...", help="the first is the yardstick")],
    seeds: Annotated[str, typer.Option(help="a range 1..5 or a list 1,2,7")] = "1..3",
    out: Out = None,
    last: Last = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    local: Annotated[bool, typer.Option(help="also show the clients' own models")] = True,
    baseline: Annotated[
        str | None, typer.Option(help="also show gbm: gradient boosted trees, each client alone and pooled")
    ] = None,
    **given: Any,
) -> None:
    """Compare algorithms on the same draws, starts and minibatches: one table, gains paired by seed.

    Finished runs in --out are not run again; an interrupted comparison goes on where it stopped.
    """
    from coterie.experiments import baselines
    from coterie.experiments.building import build_algorithm, build_data
    from coterie.experiments.summary import check_last
    from coterie.experiments.sweep import (
        check_finished,
        folder_for,
        folder_name,
        from_settings,
        grid,
        parse_seeds,
        run_all,
        with_plan,
    )
    from coterie.reporting.compared import compared
    from coterie.reporting.comparison import comparison, verdict_table
    from coterie.reporting.progress import count_models, watch_plan
    from coterie.tracking.track import track

    if baseline is not None:
        baselines.check_baseline(baseline)
    asked = [*algorithms, *(["local"] if local and "local" not in algorithms else [])]
    numbers = parse_seeds(seeds)
    base, *others = each_settings_from(asked, given)
    names = [each.algorithm for each in (base, *others)]
    check_last(last, base.rounds)
    plan = grid(base, names, numbers)
    for settings in plan[: len(names)]:
        build_algorithm(settings)
    folder = out or Path("runs") / f"compare-{folder_name(base.data)}"
    beside, folder_of = None, partial(folder_for, out=folder)
    with resumed_by(f"the same command with --out {folder}", folder):
        if baseline is not None:
            check_finished(plan, folder_of)
            source = baselines.named_source(build_data)
            beside = baselines.run_baseline(plan[:: len(names)], source, folder, partial(count_models, quiet=quiet))
        with watch_plan(plan, quiet=quiet) as show_run:
            done = list(run_all(plan, folder_of, with_plan(show_run, plan, folder), from_settings(track)))
    found = compared(done, last, folder, beside)
    found.save(folder)
    if as_json:
        say_json(found.summaries)
        return
    console.print(comparison(found.summaries, console))
    folders = {name: [folder_for(replace(base, algorithm=name, seed=n), folder) for n in numbers] for name in names}
    _print_together(folders, done[0].summary)
    console.print(verdict_table(found.verdicts, console))
    say(f"table: {folder / 'comparison.csv'}, .tex, .json")
    say(f"picture: {folder / 'comparison.png'}")


@app.command()
@guarded
@with_settings("seed")
def tune(
    target: Annotated[str, typer.Argument(metavar="ALGORITHM|FILE.toml", help="e.g. fedprox")],
    over: Annotated[
        list[str] | None, typer.Option(help="values to try, lr=0.01,0.1 or lr=0.001..0.1; default: as listed")
    ] = None,
    tries: Annotated[int | None, typer.Option(help="try this many random candidates instead of all")] = None,
    seeds: Annotated[str, typer.Option(help="a range 1..5 or a list 1,2,7")] = "1",
    out: Out = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Search settings by their score on validation data, and write the best as an experiment file.

    Each client sets aside a part of its train data (--validation, 0.2 by default); test data play no part.
    Finished candidates in --out are not run again.
    """
    from coterie.experiments import tuning
    from coterie.experiments.sweep import folder_name, from_settings, parse_seeds, slug
    from coterie.reporting.comparison import ranking
    from coterie.reporting.progress import watch_plan
    from coterie.tracking.track import track

    base = settings_from(target, given)
    folder = out or Path("runs") / f"tune-{folder_name(base.data)}-{slug(base.algorithm)}"
    ranges = tuning.ranges_for(base, over or ())
    points = tuning.candidates(ranges, tries)
    numbers, shown = parse_seeds(seeds), partial(watch_plan, quiet=quiet)
    with resumed_by(f"the same command with --out {folder}", folder):
        results = tuning.search(base, points, numbers, folder, show=shown, make=from_settings(track))
    best = tuning.write_best(base, results[0].candidate, folder)
    if as_json:
        say_json([{**result.candidate, "scores": result.scores} for result in results])
        return
    console.print(ranking(results))
    for name in tuning.at_edge(results[0].candidate, ranges):
        say(f"the best {name} is at the edge of what was tried; better ones may lie beyond")
    say(f"the best settings are in {best}: coterie run {best}")


@app.command()
@guarded
def assign(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    data: Annotated[
        Path, typer.Option(help="the newcomer's file: .npz with x and y, or a table like the run's; labels may lack")
    ],
    schema: Annotated[
        Path | None, typer.Option(help="how a table becomes arrays, where RUN holds no schema.json")
    ] = None,
    client: Annotated[
        str | None, typer.Option(help="take only the rows of this client, by the run's column of clients")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Place a client that a run has never seen, by the rule of the run's algorithm.

    The table shows how near each cluster is by that rule (minus a loss or a distance, say): the highest score takes it.
    """
    from coterie.experiments.placement import load_trained, read_newcomer
    from coterie.reporting.data_view import placement_table

    trained, newcomer = load_trained(run), read_newcomer(data, run, schema, client)
    for note in newcomer.notes:
        tell(f"note: {note}")
    found = trained.assign(newcomer.x, newcomer.y, newcomer.attributes)
    if as_json:
        say_json(asdict(found))
        return
    console.print(placement_table(found))
    say("score: how near the cluster is by the method's own rule, the highest wins; no share of right answers")
    if newcomer.y is None:
        say(f"cluster {found.cluster} is the nearest; without labels nobody knows how well it serves")
    elif found.served is None:
        why = f": {trained.score.why}" if trained.score.why else ""
        say(f"cluster {found.cluster} is the nearest; {found.measure} has no value for its examples{why}")
    else:
        say(f"cluster {found.cluster} serves it with {found.measure} {found.served:.3f}")
    if found.warning is not None:
        say(f"warning: {found.warning}", "yellow")


app.command()(predict)
app.command()(export)
app.command()(report)
app.command()(reproduce)
app.command()(watch)


def _own_data(settings: Settings, quiet: bool) -> Federated | None:
    """Load a user's own data and tell what is suspicious about them; None for data of the catalogue."""
    from coterie.data.named import is_own
    from coterie.data.tables.suspicions import suspicions_of
    from coterie.experiments.building import build_data

    if not is_own(settings.data):
        return None
    data = build_data(settings)
    for found in () if quiet else suspicions_of(data):
        tell(f"warning: {found}", "yellow")
    return data


def _print_run(summary: dict[str, Any], folder: Path, top: int | None = None) -> None:
    """Print the scores of one run, its clusters, what sets them apart (of clients with names), and the verdict."""
    from coterie.experiments.learning import learning_lines
    from coterie.reporting.apart_view import TOP, apart_table
    from coterie.reporting.comparison import comparison

    console.print(comparison({summary["algorithm"]: [summary]}, console))
    for each in learning_lines(summary):
        say(each)
    if "advise" in summary:
        advice = summary["advise"]
        for said in (advice, advice.get("certain")):
            if said is not None:
                say(said["text"])
    _print_together({summary["algorithm"]: [folder]}, summary)
    apart = _apart(folder) if top is not None or _are_named(summary) else None
    if apart is not None:
        console.print(apart_table(apart, top or TOP))
    for line in summary.get("verdict", {}).get("text", "").splitlines():
        say(line)


def _apart(folder: Path) -> Apart | None:
    """Return what sets the clusters of a run apart, if its folder says so."""
    from coterie.experiments.apart import Apart
    from coterie.experiments.run_folder import APART

    return Apart.load(folder) if (folder / APART).exists() else None


def _are_named(summary: dict[str, Any]) -> bool:
    """Return whether clients come with names, and are not made by a partition."""
    return bool(summary["partition"].partition("+")[0] == "natural")


def _print_together(folders: dict[str, list[Path]], summary: dict[str, Any]) -> None:
    """Print who ended with whom, where clients are the same in every seed and come with names."""
    from coterie.experiments.summary import load_clusters
    from coterie.reporting.comparison import clusters_table

    if not _are_named(summary):
        return
    table = clusters_table({name: [load_clusters(each) for each in runs] for name, runs in folders.items()})
    if table is not None:
        console.print(table)


def _fresh(settings: Settings, resume: bool) -> Path:
    """Return a folder under runs/ for this algorithm and seed: the newest to resume, or one that does not exist."""
    from coterie.experiments.run_folder import CONFIG
    from coterie.experiments.sweep import folder_for, folder_name

    first = folder_for(settings, Path("runs") / folder_name(settings.data))
    present = {path.name for path in first.parent.iterdir()} if first.parent.is_dir() else set()
    name = first.name
    names = [name, *(f"{name}-{i}" for i in range(2, 10_000))]
    taken = [each for each in names if each in present and (first.with_name(each) / CONFIG).exists()]
    if resume and taken:
        return first.with_name(taken[-1])
    return first.with_name(next(each for each in names if each not in taken))


class _Printed(logging.Handler):
    """Print what the library logs, such as a download, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, TOLD, False):
            tell(record.getMessage())


def main() -> None:
    """Run the ``coterie`` command."""
    if not sys.warnoptions:  # the warnings of libraries are for developers: python -W shows them
        warnings.simplefilter("ignore")
    logging.getLogger("coterie").addHandler(_Printed())
    logging.getLogger("coterie").setLevel(logging.INFO)
    app()


if __name__ == "__main__":
    main()
