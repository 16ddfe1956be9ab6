"""What all commands share: the console, errors as exit codes, and one flag for each setting."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.errors import CoterieError, UsageError
from coterie.experiments.papers import AS, papers, told
from coterie.experiments.settings import Settings, in_words, make_settings, read_table
from coterie.terminal import is_closed, tell
from coterie.textforms import read_value

TYPES: dict[str, Any] = {"int": int | None, "float": float | None, "str": str | None, "bool": bool | None}
Out = Annotated[Path | None, typer.Option(help="folder for the results (default: a new one under runs/)")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
Last = Annotated[int | None, typer.Option(help="show the mean of so many last rounds (3, of less than 10 rounds 1)")]
AsJson = Annotated[bool, typer.Option("--json", help="print the summary alone, as JSON")]

CLOSED = 141
"""The exit code of a command whose reader has gone, as a shell gives it."""

PAPER = f"{AS}_"
"""The flag that names a paper, as a name that Python allows."""


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Errors as one line and an exit code, never a traceback: 2 for what was asked, 1 otherwise, 130 for Ctrl-C."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            tell("stopped; finished rounds are saved: run --resume, or the same compare, goes on from there")
            raise typer.Exit(130) from None
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
    """What is said of an error that no part of the library foresaw; a path and a lack of memory are nobody's fault."""
    if isinstance(error, OSError) and error.filename:
        return f"error: {error.filename} cannot be used ({error.strerror}); name another path, or look at that one"
    if isinstance(error, MemoryError):
        return "error: there is not enough memory; take fewer clients or clusters, or a smaller model"
    return f"internal error: {type(error).__name__}: {error}; COTERIE_DEBUG=1 shows where, please report it"


def with_settings(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a command's ``**given`` into one flag for each setting, so that a setting is described once."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
        flags = [_flag(f.name, str(f.type), f.metadata["help"], f.default) for f in fields(Settings) if f.metadata]
        paper = _flag(PAPER, "str", f"a paper's own settings, as far as you say no others: {', '.join(papers)}", None)
        flags = [flag for flag in (*flags, paper) if flag.name not in leave_out]
        mixed = {f.name for f in fields(Settings) if " | str" in str(f.type)}

        @functools.wraps(command)
        def call(**kwargs: Any) -> None:
            names = {flag.name for flag in flags}
            said = {k: v for k, v in kwargs.items() if k in names and v is not None}
            given = {AS if k == PAPER else k: read_value(v) if k in mixed else v for k, v in said.items()}
            command(**{k: v for k, v in kwargs.items() if k not in names}, **given)

        signature = inspect.Signature([*own, *flags])
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return call

    return decorate


def _flag(name: str, kind: str, text: str, default: Any) -> inspect.Parameter:
    shown = text if default is None else f"{text} [default: {default}]"
    option = typer.Option(f"--{name.strip('_').replace('_', '-')}", help=shown, show_default=False)
    annotated: Any = Annotated
    annotation = annotated[TYPES["str" if " | str" in kind else kind.partition(" ")[0]], option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def settings_from(target: str, given: dict[str, Any]) -> Settings:
    """Settings from flags, or from an experiment file that flags override."""
    return each_settings_from([target], given)[0]


def each_settings_from(targets: Sequence[str], given: dict[str, Any]) -> list[Settings]:
    """The settings of each target; what a paper adds to them is told, every line once."""
    tables = [_table(target, given) for target in targets]
    for line in dict.fromkeys(line for table in tables for line in told(table)):
        tell(line)
    return [make_settings(table, _where(target)) for table, target in zip(tables, targets, strict=True)]


def _table(target: str, given: dict[str, Any]) -> dict[str, Any]:
    if not target.endswith(".toml"):
        return {**given, "algorithm": target}
    table = {**read_table(Path(target)), **given}
    if "data" not in given and not in_words(Path(target)):
        raise UsageError(
            f"{target} is of a run begun in Python on data that no setting names; repeat it or go on there: ct.run"
        )
    return table


def _where(target: str) -> str:
    return target if target.endswith(".toml") else "the command line"
