"""Command lines: words of the real commands, options and catalogues, some of them strange."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from random import Random
from typing import Any

import click
import typer.main

from coterie.cli.main import app
from coterie.experiments.settings import OWN
from coterie.reporting import listing
from coterie.textforms import Catalogue
from fuzz import strange
from fuzz.files import write_good
from fuzz.judge import Case, command

TINY = {"--rounds": "2", "--clients": "5", "--steps": "1", "--model": "mlp(4)", "--threads": "1", "--quiet": None}
"""What makes a run one of a tenth of a second."""

WEIGHTS = {"run": 12, "compare": 3, "data show": 3, "data check": 2, "list": 2}
"""How often a command is drawn; others once."""

LISTED = {
    "target": ("algorithms", "algorithm-add-ons"),
    "algorithms": ("algorithms", "algorithm-add-ons"),
    "partition": ("partitions", "partition-add-ons"),
    "model": ("models",),
    "robust": ("robust",),
    "as_": ("papers",),
}
"""The catalogues that an option or an argument takes its words from: names first, then what may be added to them."""

WORDS = {
    "data": ("digits", "digits", "own", "own/anna.csv", "one.csv", "pictures.npz", "mnist", "hapt", "medmnist(x)"),
    "path": ("own", "one.csv", "pictures.npz", "own/anna.csv"),
    "name": ("digits", "own", "wecfl", "algorithms", "papers", "thesis", "site-a"),
    "names": ("digits", "mnist"),
    "clusters": ("1", "2", "auto"),
    "choose": ("exact", "race"),
    "optimizer": ("sgd", "adam"),
    "label": ("label", "age"),
    "client": ("sex", "label", "who"),
    "group": ("sex", "label"),
    "ignore": ("age", "age,sex"),
    "missing": ("error", "mean"),
    "task": ("classification", "regression"),
    "join": ("0.5@1", "client-1@1"),
    "leave": ("0.5@1", "client-1@1"),
    "until": ("accuracy=0.1", "ari=0.5", "rmse=1"),
    "weigh_by": ("test", "train"),
    "plan": ("auto", "single", "workers", "lockstep"),
    "device": ("cpu", "cuda", "meta"),
    "runtime": ("simulator",),
    "classes": ("1,3,7", "0..4"),
    "seeds": ("1", "1..2", "3,1", "1..100000000000000", "2..1"),
    "over": ("lr=0.1,0.2", "lr=0.1..0.2", "shots=1", "batch=8,16"),
    "tries": ("1", "2"),
    "sites": ("a", "a,b", "a,a"),
    "run": ("out",),
    "participation": ("0.5", "1"),
}
"""Words that options and arguments take, by their names; of others the type says it."""

INSIDE = (
    "head",
    "all",
    "body",
    "random",
    "farthest",
    "cosine",
    "adam",
    "uniform",
    "examples",
    "auto",
    "race",
    "sampled",
)
"""Words that arguments of algorithms take."""


def prepare(place: Path) -> None:
    """Nothing is needed."""


def make(rng: Random, prepared: Path) -> Case:
    """A command with arguments and options; in about half of the cases a word or more are strange."""
    path, chosen = _drawn(rng)
    write_good(Path())
    words = [*path, *_line(rng, " ".join(path), chosen)]
    for _ in range(rng.choice((0, 0, 0, 1))):
        place = rng.randrange(len(words))
        words[place] = strange.damaged_text(rng, words[place])
    words = [word.replace("\0", "") for word in words]
    shown = shlex.join(["coterie", *words]).encode("utf-8", "backslashreplace").decode()
    return Case(shown, command([_as_given(word) for word in words]), prints=words[:2] == ["data", "check"])


def _as_given(word: str) -> str:
    """A word as the system hands it over: bytes that are no text come as lone surrogates of one kind."""
    return word.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")


def _commands() -> dict[tuple[str, ...], click.Command]:
    """All commands of the command line, by their words."""
    found: dict[tuple[str, ...], click.Command] = {}

    def walk(path: tuple[str, ...], node: click.Command) -> None:
        if isinstance(node, click.Group):
            for name, inner in node.commands.items():
                walk((*path, name), inner)
        else:
            found[path] = node

    walk((), typer.main.get_command(app))
    return found


def _drawn(rng: Random) -> tuple[tuple[str, ...], click.Command]:
    known = _commands()
    weights = [WEIGHTS.get(" ".join(path), 1) for path in known]
    path = rng.choices(list(known), weights)[0]
    return path, known[path]


def _line(rng: Random, name: str, chosen: click.Command) -> list[str]:
    """Arguments and options of one command; runs are made tiny, unless an option is drawn that says otherwise."""
    options = [each for each in chosen.params if isinstance(each, click.Option)]
    known = {each.opts[0] for each in options}
    said: dict[str, str | None] = {flag: value for flag, value in TINY.items() if flag in known}
    said |= {"--seeds": "1"} if "--seeds" in known else {}
    said |= {"--tries": "1"} if "--tries" in known else {}
    words = [_value(rng, each) for each in chosen.params if isinstance(each, click.Argument)]
    for option in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 3)))):
        flag = rng.choice([*option.opts, *option.secondary_opts])
        said[flag] = None if option.is_flag else _value(rng, option)
        if option.name in OWN and "--data" in known:
            said |= {"--data": rng.choice(("own", "one.csv"))}
    if said.get("--data", "digits") != "digits" or (name == "data show" and words[0] != "digits"):
        said.pop("--clients", None)
    flags = [part for flag, value in said.items() for part in (flag, *([] if value is None else [value]))]
    return words + flags if rng.random() < 0.95 else flags


def _value(rng: Random, parameter: click.Parameter) -> str:
    """A word for an option or an argument: one that it takes, or in a fifth of cases a strange one."""
    name, kind = str(parameter.name), parameter.type.name
    if rng.random() < 0.2:
        return rng.choice(strange.NUMBERS) if kind in ("integer", "float") else strange.text(rng)
    if name in LISTED:
        return _call(rng, *(listing.catalogue(each) for each in LISTED[name]))
    if name in WORDS:
        return rng.choice(WORDS[name])
    return {"integer": str(rng.choice((1, 1, 2, 3))), "float": rng.choice(("0", "0.1", "0.5", "1"))}.get(kind, "out")


def _call(rng: Random, first: Catalogue, *further: Catalogue) -> str:
    """A text of a catalogue, with some arguments and perhaps add-ons."""
    calls = [_named(rng, first)]
    calls += [_named(rng, catalogue) for catalogue in further for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    return "+".join(calls)


def _named(rng: Random, catalogue: Catalogue) -> str:
    name = rng.choice(list(catalogue))
    known = inspect.signature(catalogue.find(name)).parameters
    open_ = [each for each in known.values() if each.name not in catalogue.hidden]
    chosen = rng.sample(open_, min(len(open_), rng.choice((0, 0, 1, 2))))
    words = [_argument(rng, each) for each in chosen]
    return f"{name}({','.join(words)})" if words else name


def _argument(rng: Random, parameter: inspect.Parameter) -> str:
    named = "" if parameter.kind is parameter.VAR_POSITIONAL else f"{parameter.name}="
    return named + _inner(rng, parameter)


def _inner(rng: Random, parameter: inspect.Parameter) -> str:
    """A value inside of brackets: the default, a word, a small number, another catalogue's name, or a strange one."""
    default: Any = parameter.default
    if rng.random() < 0.15:
        return strange.text(rng)
    if default is not parameter.empty and rng.random() < 0.3:
        return str(default).lower()
    kind = str(parameter.annotation)
    if "str" in kind:
        return rng.choice((*INSIDE, *listing.catalogue("clusterers"), *listing.catalogue("algorithms")))
    if "bool" in kind:
        return rng.choice(("true", "false"))
    return rng.choice(("1", "2", "3", "0.5", "0.1", "90"))
