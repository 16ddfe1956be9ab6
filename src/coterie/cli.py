"""The command line. Its words are the library's words."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from coterie import listing
from coterie.data import fetch
from coterie.errors import CoterieError, UsageError
from coterie.experiment import run_settings
from coterie.progress import errors, watch
from coterie.results.compare import comparison
from coterie.results.plots import save_comparison
from coterie.results.record import CONFIG
from coterie.settings import Settings, load_settings, make_settings
from coterie.show import holdings
from coterie.sweep import folder_for, grid, histories, parse_seeds, run_all

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
data_app = typer.Typer(no_args_is_help=True, help="Fetch data sets and look at how they are dealt to clients.")
app.add_typer(data_app, name="data")
console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)

TYPES: dict[str, Any] = {"int": int | None, "float": float | None, "str": str | None}
Out = Annotated[Path | None, typer.Option(help="folder for the results (default: a new one under runs/)")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
AsJson = Annotated[bool, typer.Option("--json", help="print the summary alone, as JSON")]


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Errors as one line and an exit code, never a traceback: 2 for what was asked, 1 otherwise, 130 for Ctrl-C."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            errors.print("stopped; finished rounds are saved: run --resume, or the same compare, goes on from there")
            raise typer.Exit(130) from None
        except CoterieError as error:
            errors.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if os.environ.get("COTERIE_DEBUG"):
                raise
            told = f"internal error: {type(error).__name__}: {error}; COTERIE_DEBUG=1 shows where, please report it"
            errors.print(told, style="red", markup=False, soft_wrap=True)
            raise typer.Exit(1) from None

    return call


def with_settings(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a command's ``**given`` into one flag for each setting, so that a setting is described once."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        flags = [_flag(f.name, str(f.type), f.metadata["help"], f.default) for f in fields(Settings) if f.metadata]
        flags = [flag for flag in flags if flag.name not in leave_out]

        @functools.wraps(command)
        def call(**kwargs: Any) -> None:
            names = {flag.name for flag in flags}
            given = {k: v for k, v in kwargs.items() if k in names and v is not None}
            command(**{k: v for k, v in kwargs.items() if k not in names}, **given)

        signature = inspect.Signature([*own, *flags])
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return call

    return decorate


def _flag(name: str, kind: str, text: str, default: Any) -> inspect.Parameter:
    shown = text if default is None else f"{text} [default: {default}]"
    option = typer.Option(f"--{name.replace('_', '-')}", help=shown, show_default=False)
    annotated: Any = Annotated
    annotation = annotated[TYPES[kind.partition(" ")[0]], option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@app.command("list")
@guarded
def list_names(name: Annotated[str | None, typer.Argument(help="a catalogue or one name")] = None) -> None:
    """Show what there is: algorithms, data, partitions, models, clusterers, or one NAME with its arguments."""
    if name is None or name in listing.CATALOGUES:
        for which in listing.CATALOGUES if name is None else [name]:
            console.print(listing.overview(which))
            console.print()
    else:
        console.print(listing.entry(name))


@data_app.command("fetch")
@guarded
def data_fetch(names: Annotated[list[str], typer.Argument(help="data sets, see coterie list data")]) -> None:
    """Fetch, verify and cache data sets."""
    for name in names:
        fetch(name, report=lambda line: errors.print(line, markup=False))
        console.print(f"{name} is ready")


@data_app.command("show")
@guarded
@with_settings("data", "model", "clusters")
def data_show(name: Annotated[str, typer.Argument(help="a data set or a folder")], **given: Any) -> None:
    """Show who holds what under a partition."""
    settings = make_settings({**given, "algorithm": "fedavg", "data": name})
    console.print(holdings(settings.build_data()))


@app.command()
@guarded
@with_settings()
def run(
    target: Annotated[str, typer.Argument(metavar="ALGORITHM|FILE.toml", help="e.g. 'wecfl(shots=10)'")],
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Run one algorithm, from flags or from an experiment file (flags override the file)."""
    settings = _settings(target, given)
    folder = out or _fresh(settings, resume)
    with watch(settings, quiet) as progress:
        result = run_settings(settings, folder, resume, progress)
    if as_json:
        print(json.dumps(result.summary))
        return
    console.print(comparison({settings.algorithm: [result.summary]}, console))
    console.print(f"results are in {folder}")


@app.command()
@guarded
@with_settings("seed")
def compare(
    algorithms: Annotated[list[str], typer.Argument(metavar="ALGORITHM...", help="the first is the yardstick")],
    seeds: Annotated[str, typer.Option(help="a range 1..5 or a list 1,2,7")] = "1..3",
    out: Out = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    local: Annotated[bool, typer.Option(help="also show the clients' own models")] = True,
    **given: Any,
) -> None:
    """Compare algorithms on the same draws, starts and minibatches: one table, gains paired by seed.

    Finished runs in --out are not run again; an interrupted comparison goes on where it stopped.
    """
    names = [*algorithms, *(["local"] if local and "local" not in algorithms else [])]
    numbers = parse_seeds(seeds)
    base = _settings(names[0], given)
    plan = grid(base, names, numbers)
    for settings in plan[: len(names)]:
        settings.build_algorithm()
    folder = out or Path("runs") / f"compare-{base.data.replace('/', '-')}"
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for settings, summary in run_all(plan, folder, partial(watch, quiet=quiet)):
        found[settings.algorithm].append(summary)
    if as_json:
        print(json.dumps(found))
        return
    console.print(comparison(found, console))
    picture = folder / "comparison.png"
    title = f"{base.data}, {found[names[0]][0]['partition']}, {found[names[0]][0]['clients']} clients"
    save_comparison(picture, histories(names, numbers, base, folder), title)
    console.print(f"picture: {picture}")


def _settings(target: str, given: dict[str, Any]) -> Settings:
    if target.endswith(".toml"):
        return load_settings(Path(target), given)
    return make_settings({**given, "algorithm": target})


def _fresh(settings: Settings, resume: bool) -> Path:
    """A folder under runs/ for this algorithm and seed: the newest one to resume, or one that is not there yet."""
    first = folder_for(settings, Path("runs") / settings.data.replace("/", "-"))
    tries = [first, *(first.with_name(f"{first.name}-{i}") for i in range(2, 10_000))]
    taken = [path for path in tries if (path / CONFIG).exists()]
    if resume and taken:
        return taken[-1]
    return next(path for path in tries if path not in taken)


class _Tell(logging.Handler):
    """What the library logs, such as a download, goes to the person at the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        errors.print(record.getMessage(), markup=False, soft_wrap=True)


def main() -> None:
    """The entry point of the ``coterie`` command."""
    logging.getLogger("coterie").addHandler(_Tell())
    logging.getLogger("coterie").setLevel(logging.INFO)
    app()


if __name__ == "__main__":
    main()
