"""What a run folder records of its run, and what must be the same when the run is resumed."""

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
from coterie.experiments.records import DataFacts
from coterie.experiments.run_folder import CONFIG, FORMAT, check_start, load_config
from coterie.experiments.settings import Settings, in_words, load_settings

_log = logging.getLogger(__name__)


def config_table(settings: Settings, facts: DataFacts) -> dict[str, Any]:
    """Return the content of config.toml: the settings, the form of examples, and the versions that make the run."""
    classes = {} if facts.classes is None else {"classes": facts.classes}
    names = {"clients": list(facts.names)} if facts.partition.startswith("natural") else {}
    marks = {} if facts.fingerprint is None else {"fingerprint": facts.fingerprint, "words": facts.from_settings}
    marks |= {} if facts.files is None else {"files": facts.files}
    examples = {"shape": list(facts.shape), **classes, "unit": float(facts.unit), **names, **marks}
    versions = {name: metadata.version(name) for name in ("coterie", "torch", "numpy", "scikit-learn")}
    threads = {} if facts.fingerprint is None else {"threads": machine_layout(settings)["threads"]}
    made_by = {"format": FORMAT, "python": platform.python_version(), **threads, **versions, **_revision()}
    return {**settings.table(), "examples": examples, "made_by": made_by}


def machine_layout(settings: Settings) -> dict[str, Any]:
    """Return the settings that distribute the work of a simulation over the machine."""
    names = ("runtime", "plan", "device")
    return {"threads": settings.threads or available_cores(), **{name: getattr(settings, name) for name in names}}


def _revision() -> dict[str, str]:
    """Return the git revision of the code if it runs from a checkout."""
    here = Path(__file__)
    ask = partial(subprocess.run, check=True, capture_output=True, text=True, timeout=5, cwd=here.parent)
    try:
        ask(["git", "ls-files", "--error-unmatch", here.name])
        answer = ask(["git", "rev-parse", "HEAD"])
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git": answer.stdout.strip()}


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
    """Refuse settings of another run; only its length, its evaluation and its machine layout may change."""
    free = {"rounds", "runtime", "threads", "plan", "device", "eval_every", "checkpoint_every"}
    before, now = building.meaning(old), building.meaning(new)
    for name in sorted(before.keys() | now.keys()):
        if name not in free and before.get(name) != now.get(name):
            raise RunFolderError(
                f"{out} was begun with {name} = {before.get(name)}, not {now.get(name)}; "
                "resume it with the same settings, or give another --out"
            )


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


def check_files(out: Path, files: str | None, data: str) -> None:
    """Refuse a user's own files if their hash differs from the one that the run was begun with."""
    if files is not None and load_config(out)["examples"].get("files", files) != files:
        raise RunFolderError(
            f"{out} was begun on other files than those of {data} now: they were changed since; "
            "restore the files, or give another --out"
        )


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
