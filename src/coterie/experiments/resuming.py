"""What a run folder says of its run, and what must agree with it when the run is resumed."""

from __future__ import annotations

import logging
import platform
import subprocess
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from coterie.engine.plan import available_cores
from coterie.errors import RunFolderError
from coterie.experiments import building
from coterie.experiments.data_facts import DataFacts
from coterie.experiments.run_folder import CONFIG, FORMAT, load_config
from coterie.experiments.settings import Settings, in_words

_log = logging.getLogger(__name__)


def check_same(old: Settings, new: Settings, out: Path) -> None:
    """A run is resumed with the settings it was begun with; only its length and how it is watched may change."""
    free = {"rounds", "runtime", "threads", "plan", "device", "eval_every", "checkpoint_every"}
    before, now = building.meaning(old), building.meaning(new)
    for name in sorted(before.keys() | now.keys()):
        if name not in free and before.get(name) != now.get(name):
            raise RunFolderError(
                f"{out} was begun with {name} = {before.get(name)}, not {now.get(name)}; "
                "go on with the same settings or give another --out"
            )


def tell_laid(out: Path, settings: Settings) -> None:
    """Say that a run is gone on with on other threads or by another plan: sums in another order round otherwise."""
    config, now = load_config(out), laid(settings)
    before = {**now, **{name: config[name] for name in now if name in config}}
    before["threads"] = config["made_by"].get("threads", before["threads"])
    other = [f"{name} = {now[name]}, not {before[name]}" for name in now if now[name] != before[name]]
    if other:
        _log.warning(
            "%s goes on with %s: its numbers may differ in their last bits from those of an unbroken run",
            out,
            " and ".join(other),
        )


def laid(settings: Settings) -> dict[str, Any]:
    """How a simulation's work is laid on the machine."""
    names = ("runtime", "plan", "device")
    return {"threads": settings.threads or available_cores(), **{name: getattr(settings, name) for name in names}}


def check_worded(out: Path, known: DataFacts) -> None:
    """A run on data that Python made by hand is resumed in Python: no settings name such data."""
    if known.worded and not in_words(out / CONFIG):
        raise RunFolderError(
            f"{out} was begun in Python on data that no setting names; go on there: ct.run(..., resume=True)"
        )


def check_examples(out: Path, known: DataFacts) -> None:
    """A run is resumed with the data it was begun with: clients of their own names, in order, and their examples."""
    examples = load_config(out)["examples"]
    before = examples.get("clients")
    if before is not None and tuple(before) != known.names:
        other = sorted({*before} ^ {*known.names})
        what = f"differs in {', '.join(other[:5])}" if other else "has the same in another order"
        raise RunFolderError(f"{out} was begun with {len(before)} clients and this {what}; give another --out")
    if known.fingerprint is not None and examples.get("fingerprint", known.fingerprint) != known.fingerprint:
        raise RunFolderError(
            f"{out} was begun on other examples than these of {known.data}, perhaps drawn with another seed; "
            "go on with the same data or give another --out"
        )
    check_files(out, known.files, known.data)


def check_files(out: Path, files: str | None, data: str) -> None:
    """A run is taken only with the user's own files that it was begun with, of which this is the hash, if known."""
    if files is not None and load_config(out)["examples"].get("files", files) != files:
        raise RunFolderError(
            f"{out} was begun on other files than those of {data} now: they were changed since; "
            "go on with the files as they were, or give another --out"
        )


def config_table(settings: Settings, known: DataFacts) -> dict[str, Any]:
    """What config.toml holds: the settings, what an example looks like, and the versions that made the run."""
    classes = {} if known.classes is None else {"classes": known.classes}
    named = {"clients": list(known.names)} if known.partition.startswith("natural") else {}
    marks = {} if known.fingerprint is None else {"fingerprint": known.fingerprint, "words": known.worded}
    marks |= {} if known.files is None else {"files": known.files}
    examples = {"shape": list(known.shape), **classes, "unit": float(known.unit), **named, **marks}
    versions = {name: metadata.version(name) for name in ("coterie", "torch", "numpy", "scikit-learn")}
    threads = {} if known.fingerprint is None else {"threads": laid(settings)["threads"]}
    made_by = {"format": FORMAT, "python": platform.python_version(), **threads, **versions, **_revision()}
    return {**settings.table(), "examples": examples, "made_by": made_by}


def _revision() -> dict[str, str]:
    """The git revision of the code, where it runs from a checkout of its own."""
    here = Path(__file__)
    ask = partial(subprocess.run, check=True, capture_output=True, text=True, timeout=5, cwd=here.parent)
    try:
        ask(["git", "ls-files", "--error-unmatch", here.name])
        answer = ask(["git", "rev-parse", "HEAD"])
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git": answer.stdout.strip()}
