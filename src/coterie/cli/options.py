"""What all commands share: errors as exit codes, and one flag for each setting."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.errors import CoterieError, UsageError
from coterie.experiments.papers import AS, added_lines, papers
from coterie.experiments.settings import Settings, in_words, make_settings, read_table
from coterie.experiments.table_defaults import TABLES
from coterie.terminal import is_closed, tell
from coterie.textforms import read_value
from coterie.typed import COMMAND_LINE, members_of, types_of

Out = Annotated[Path | None, typer.Option(help="folder for the results (default: a new one under runs/)")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
Last = Annotated[int | None, typer.Option(help="show the mean of this many last rounds (3; 1 of less than 10 rounds)")]
AsJson = Annotated[bool, typer.Option("--json", help="print the summary alone, as JSON")]

Earlier = Annotated[
    str | None,
    typer.Option("--from", help="begin with the models and clusters of this finished run; clients may have changed"),
]

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended, as a shell gives it."""

CLOSED = 141
"""The exit code of a command when nobody reads its output any more, as a shell gives it."""

PAPER = f"{AS}_"
"""The flag that names a paper, as a name that Python allows."""


@contextmanager
def at_ctrl_c(said: Callable[[], str]) -> Iterator[None]:
    """Say at Ctrl-C what is true then, and end the command with the exit code of it."""
    try:
        yield
    except KeyboardInterrupt:
        tell(said())
        raise typer.Exit(INTERRUPTED) from None


def resumed_by(command: str, folder: Path) -> AbstractContextManager[None]:
    """Say at Ctrl-C whether rounds are saved in a folder, or in those within it, and what goes on from there."""
    from coterie.experiments.run_folder import STATE

    def said() -> str:
        if any(folder.rglob(STATE)):
            return f"stopped; finished rounds are saved in {folder}: {command} goes on from there"
        return "stopped before a round was saved; give the same command again to begin anew"

    return at_ctrl_c(said)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors into one line and an exit code: 2 for what the user asked, 1 otherwise, 130 for Ctrl-C."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            with at_ctrl_c(lambda: "stopped; there is nothing to resume"):
                command(*args, **kwargs)
        except CoterieError as error:
            tell(f"error: {error}", "red")
            raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and is_closed():
                raise typer.Exit(CLOSED) from None
            if os.environ.get("COTERIE_DEBUG"):
                raise
            tell(_unforeseen(error), "red")
            raise typer.Exit(2 if isinstance(error, OSError) and error.filename else 1) from None

    return call


def _unforeseen(error: Exception) -> str:
    """Return the message for an error that no part of the library foresaw: a bad path, no memory, or a bug."""
    if isinstance(error, OSError) and error.filename:
        return f"error: {error.filename} cannot be used ({error.strerror}); name another path, or look at that one"
    if isinstance(error, MemoryError):
        return "error: there is not enough memory; take fewer clients or clusters, or a smaller model"
    return f"internal error: {type(error).__name__}: {error}; COTERIE_DEBUG=1 shows where, please report it"


def with_settings(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a command's ``**given`` into one flag for each setting, as ``Settings`` declares it."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        flags = [flag for flag in _flags() if flag.name not in leave_out]
        names = [flag.name for flag in flags]

        @functools.wraps(command)
        def call(**kwargs: Any) -> None:
            rest = {name: value for name, value in kwargs.items() if name not in names}
            given = {name: _value(name, kwargs[name]) for name in names if kwargs.get(name) is not None}
            command(**rest, **{AS if n == PAPER else n: value for n, value in given.items() if value is not None})

        signature = inspect.Signature([*own, *flags])
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return call

    return decorate


def _value(flag: str, value: Any) -> Any:
    """Return the value of a flag; one that may be a number or a word comes as a text."""
    kinds = members_of(types_of(Settings).get(flag, str))
    return read_value(value) if int in kinds and str in kinds else value


@functools.cache
def _flags() -> tuple[inspect.Parameter, ...]:
    """Return a flag for each setting that has a help text, and the one that names a paper."""
    kinds = {name: members_of(hint) for name, hint in types_of(Settings).items()}
    paper = _flag(PAPER, str, f"a paper's own settings, unless you give others: {', '.join(papers)}", None)
    return (
        *(
            _flag(
                each.name, str if str in kinds[each.name] else kinds[each.name][0], each.metadata["help"], each.default
            )
            for each in fields(Settings)
            if "help" in each.metadata
        ),
        paper,
    )


def _flag(name: str, kind: type, text: str, default: Any) -> inspect.Parameter:
    shown, word = text if default is None else f"{text}; default {default}", name.strip("_").replace("_", "-")
    shown += f"; for your tables {TABLES[name]}" if name in TABLES else ""
    both = f"--{word}/--no-{word}" if kind is bool else f"--{word}"
    option = typer.Option(both, help=shown, show_default=False)
    annotated: Any = Annotated
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotated[kind | None, option]
    )


def settings_from(target: str, given: dict[str, Any], tables: bool | None = None) -> Settings:
    """Return the settings of flags, or of an experiment file that flags override; ``tables`` as in make_settings."""
    return each_settings_from([target], given, tables)[0]


def each_settings_from(targets: Sequence[str], given: dict[str, Any], tables: bool | None = None) -> list[Settings]:
    """Return the settings of each target; print what a paper adds to them, every line once."""
    every = [_given(target, given) for target in targets]
    for line in dict.fromkeys(line for table, _ in every if AS in table for line in added_lines(table)):
        tell(line)
    return [make_settings(table, where, tables) for table, where in every]


def settings_either_way(target: str, given: dict[str, Any]) -> tuple[Settings, Settings]:
    """Return the settings for arrays and those for tables, where it is not known yet which of them the data are."""
    table, where = _given(target, given)
    return settings_from(target, given, tables=False), make_settings(table, where, True)


def _given(target: str, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the table of settings that a target and flags give, and what errors call their place."""
    if target.endswith(".toml"):
        return _table(target, given), target
    return {**given, "algorithm": target}, COMMAND_LINE


def _table(target: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the table of settings in an experiment file; what is given on the command line overrides it."""
    table = {**read_table(Path(target), ordered=True), **given}
    if "data" not in given and not in_words(Path(target)):
        raise UsageError(
            f"{target} is of a run begun in Python on data that no setting names; repeat it or go on there: ct.run"
        )
    return table
