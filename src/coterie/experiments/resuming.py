"""Whether a run may be resumed: with settings that mean the same run, on the same data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from coterie import algorithms
from coterie.data import Reading, parse_partition
from coterie.data.named import is_own
from coterie.engine.plan import available_cores
from coterie.errors import RunFolderError, UsageError
from coterie.experiments.building import completed
from coterie.experiments.records import DataFacts, Record
from coterie.experiments.run_folder import CONFIG, check_start, load_config, load_summary
from coterie.experiments.settings import OWN, Settings, in_words, load_settings
from coterie.protocol.task import Fit
from coterie.textforms import parse_one

_log = logging.getLogger(__name__)


def check_resumable(out: Path, settings: Settings, facts: DataFacts) -> None:
    """Refuse to resume a run with other settings or data than it was begun with; warn of another machine layout."""
    check_start(out)
    if facts.from_settings and not in_words(out / CONFIG):
        raise RunFolderError(
            f"{out} was begun in Python on data that no setting names; resume it there: ct.run(..., resume=True)"
        )
    check_settings(load_settings(out / CONFIG, {}), settings, out)
    check_examples(out, facts)
    if facts.fingerprint is not None:
        warn_if_moved(out, settings)


def check_settings(old: Settings, new: Settings, out: Path) -> None:
    """Refuse settings of another run; only its length, evaluation, trackers and machine layout may change."""
    free = {"rounds", "runtime", "threads", "plan", "device", "eval_every", "checkpoint_every", "references", "track"}
    before, now = meaning(old), meaning(new)
    for name in sorted(before.keys() | now.keys()):
        if name not in free and before.get(name) != now.get(name):
            raise RunFolderError(
                f"{out} was begun with {name} = {before.get(name)}, not {now.get(name)}; "
                "resume it with the same settings, or give another --out"
            )


def finished_summary(settings: Settings, folder: Path) -> Record | None:
    """Return the summary of a finished run; None if it is not finished, an error if it has other settings."""
    summary = load_summary(folder)
    if summary is None:
        return None
    old = load_settings(folder / CONFIG, {})
    known = replace(
        completed(settings), model=settings.model or old.model, lr=settings.lr or old.lr, clients=old.clients
    )
    if settings.clients not in (None, old.clients):
        known = replace(known, clients=settings.clients)
    check_settings(old, known, folder)
    if summary["rounds"] > settings.rounds:
        raise RunFolderError(
            f"{folder} holds {summary['rounds']} rounds, more than the {settings.rounds} asked for; give another --out"
        )
    return summary if summary["rounds"] == settings.rounds or summary.get("stopped") else None


def meaning(settings: Settings) -> dict[str, Any]:
    """Return what the run is, however it is written: settings of the same run are equal in this.

    >>> one, other = Settings("wecfl", clusters=3), Settings("wecfl(3)", partition="rotation(0, 90,180,270)")
    >>> meaning(one) == meaning(other)
    True
    """
    full = completed(settings)
    found = {**full.table(), **_about_algorithm(full), **_about_own(full), "data": _address_of_data(settings)}
    found["robust"], found["weight_bound"] = str(parse_one(full.robust)), full.weight_bound or None
    found["partition"] = _readable(lambda: parse_partition(str(full.partition)).text, str(full.partition))
    return {name: value for name, value in found.items() if value is not None and value is not False}


def _about_algorithm(full: Settings) -> dict[str, Any]:
    """Return the algorithm as one text, and how its clients really train; nothing where Python made it by hand."""
    try:
        algorithm = algorithms.spelled_out(full.algorithm, full.clusters, full.fit(), full.choose)
    except UsageError:
        return {}
    known = {each.name for each in fields(full)}
    fit = {each.name: getattr(algorithm.fit, each.name) for each in fields(Fit) if each.name in known}
    steps = {} if algorithm.fit.epochs else {"steps": algorithm.fit.minibatches(0)}
    return {**fit, **steps, "algorithm": algorithm.name, "clusters": None, "choose": None}


def _about_own(full: Settings) -> dict[str, Any]:
    reading = Reading(**full.reading())
    return {**dict.fromkeys(OWN), **reading.words()} if is_own(full.data) else {}


def _address_of_data(settings: Settings) -> str:
    if is_own(settings.data):
        return str(Path(settings.data).resolve())
    return _readable(lambda: str(parse_one(settings.data)), settings.data)


def _readable(read: Callable[[], str], text: str) -> str:
    """Return a text in its one way of writing, or as it is where it cannot be read."""
    try:
        return read()
    except UsageError:
        return text


def check_examples(out: Path, facts: DataFacts) -> None:
    """Refuse other data than the run was begun with: other names of clients, another order, or other examples."""
    examples = load_config(out)["examples"]
    before = examples.get("clients")
    if before is not None and tuple(before) != facts.names:
        other = sorted({*before} ^ {*facts.names})
        what = f"differs in {', '.join(other[:5])}" if other else "has the same in another order"
        raise RunFolderError(f"{out} was begun with {len(before)} clients and this {what}; give another --out")
    if facts.fingerprint is not None and examples.get("fingerprint", facts.fingerprint) != facts.fingerprint:
        raise RunFolderError(
            f"{out} was begun on other examples than these of {facts.data}, perhaps drawn with another seed; "
            "resume it with the same data, or give another --out"
        )
    check_files(out, facts.files, facts.data)


def check_frozen(out: Path, frozen: str) -> None:
    """Refuse a network whose frozen part has other numbers than the one that the run was begun with."""
    before = load_config(out)["made_by"].get("frozen", "")
    if before != frozen:
        raise RunFolderError(
            f"{out} was begun with a network whose frozen part is {before or 'nothing'}, not {frozen or 'nothing'}; "
            "restore its weights, or give another --out"
        )


def check_files(out: Path, files: str | None, data: str) -> None:
    """Refuse a user's own files if their hash differs from the one that the run was begun with."""
    if files is not None and load_config(out)["examples"].get("files", files) != files:
        raise RunFolderError(
            f"{out} was begun on other files than those of {data} now: they were changed since; "
            "restore the files, or give another --out"
        )


def machine_layout(settings: Settings) -> dict[str, Any]:
    """Return the settings that distribute the work of a simulation over the machine."""
    names = ("runtime", "plan", "device")
    return {"threads": settings.threads or available_cores(), **{name: getattr(settings, name) for name in names}}


def warn_if_moved(out: Path, settings: Settings) -> None:
    """Warn that a run is resumed with another machine layout: sums in another order round differently."""
    config, now = load_config(out), machine_layout(settings)
    before = {**now, **{name: config[name] for name in now if name in config}}
    before["threads"] = config["made_by"].get("threads", before["threads"])
    changed = [f"{name} = {now[name]}, not {before[name]}" for name in now if now[name] != before[name]]
    if changed:
        _log.warning(
            "%s is resumed with %s: its numbers may differ in their last bits from those of an unbroken run",
            out,
            " and ".join(changed),
        )
