"""Run folders: damaged ones, which are refused, or gone on with to the very numbers of the untouched run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzz import strange
from fuzz.files import arrays
from fuzz.judge import Case, command

ROUNDS = 3
WORDS = (
    *("--clients", "5", "--clusters", "2", "--partition", "rotation(0,180)", "--model", "mlp(4)", "--steps", "1"),
    *("--rounds", str(ROUNDS), "--threads", "1", "--quiet"),
)
TEMPLATES = ("finished", "begun", "cut")
MEASURED = {"seconds", "client_steps_per_second", "peak_memory_mb"}
PLACE = Path("runs", "wecfl", "seed-1")
"""Where ``compare --out runs`` keeps the run."""


def prepare(place: Path) -> None:
    """A finished run, one that was stopped after two rounds, one without its summary, and one of another seed."""
    from coterie.experiments.run import run_settings
    from coterie.experiments.settings import Settings

    settings = Settings(
        "wecfl", clients=5, clusters=2, partition="rotation(0,180)", model="mlp(4)", steps=1, rounds=ROUNDS, threads=1
    )
    run_settings(settings, place / "finished")
    run_settings(Settings(**{**settings.table(), "seed": 2}), place / "other")

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        run_settings(settings, place / "begun", progress=stop)
    shutil.copytree(place / "finished", place / "cut")
    (place / "cut" / "summary.json").unlink()
    (place / "new.npz").write_bytes(arrays(x=np.zeros((20, 1, 8, 8), np.float32), y=np.arange(20) % 10))


def make(rng: Random, prepared: Path) -> Case:
    """A copy of a run folder with one or two things wrong, given to a command that reads it."""
    shutil.copytree(prepared / rng.choice(TEMPLATES), PLACE)
    told = [_damage(rng, prepared) for _ in range(rng.choice((1, 1, 1, 2)))]
    shutil.copy(prepared / "new.npz", "new.npz")
    words, after = rng.choice(
        (
            (["run", "wecfl", *WORDS, "--out", str(PLACE), "--resume", "--json"], _same_run),
            (["run", "wecfl", *WORDS, "--out", str(PLACE), "--resume", "--json"], _same_run),
            (["run", str(PLACE / "config.toml"), "--quiet", "--out", str(PLACE), "--resume"], _same_run),
            (["compare", "wecfl", "--no-local", *WORDS, "--seeds", "1", "--out", "runs"], _same_told),
            (["assign", str(PLACE), "--data", "new.npz"], _nothing),
        )
    )
    return Case(f"coterie {' '.join(words)} where {'; '.join(told)}", command(words), after(prepared))


def _damage(rng: Random, prepared: Path) -> str:
    """Do one kind of damage to one file of the folder, and say what."""
    names = sorted(path.name for path in PLACE.iterdir() if path.is_file())
    if not names:
        return "the folder is empty"
    path, other = PLACE / rng.choice(names), PLACE / rng.choice(names)
    content = path.read_bytes()
    match rng.randrange(9):
        case 0:
            path.unlink()
            return f"{path.name} is gone"
        case 1:
            path.unlink()
            path.mkdir()
            return f"{path.name} is a folder"
        case 2:
            path.write_bytes(other.read_bytes())
            return f"{path.name} is {other.name}"
        case 3 if (prepared / "other" / path.name).exists():
            shutil.copy(prepared / "other" / path.name, path)
            return f"{path.name} is another run's"
        case 4 | 5 if b"\0" not in content and any(48 <= byte <= 57 for byte in content):
            path.write_bytes(content := _other_digit(rng, content))
        case 6 if path.suffix in (".json", ".jsonl"):
            path.write_bytes(content := _other_value(rng, content))
        case _:
            path.write_bytes(content := strange.damaged_bytes(rng, content))
    return f"{path.name} is {content[:3000]!r}"


def _other_digit(rng: Random, content: bytes) -> bytes:
    place = rng.choice([place for place, byte in enumerate(content) if 48 <= byte <= 57])
    return content[:place] + str(rng.randrange(10)).encode() + content[place + 1 :]


def _other_value(rng: Random, content: bytes) -> bytes:
    """One line of JSON, or all of it, with a strange value."""
    lines = content.splitlines() if content.startswith(b'{"') else [content]
    place = rng.randrange(len(lines))
    lines[place] = json.dumps(strange.damaged_value(rng, json.loads(lines[place]))).encode()
    return b"\n".join(lines) + b"\n"


def _same_run(prepared: Path, models: bool = True) -> Callable[[int], list[str]]:
    """What was gone on with has the numbers of the untouched run."""

    def after(code: int) -> list[str]:
        if code:
            return []
        ours, true = (_numbers(folder, models) for folder in (PLACE, prepared / "finished"))
        return [f"another {name} than that of the untouched run" for name in true if ours[name] != true[name]]

    return after


def _same_told(prepared: Path) -> Callable[[int], list[str]]:
    """What a finished run says is what the untouched one says; nobody looks at its models."""
    return _same_run(prepared, models=False)


def _nothing(prepared: Path) -> Callable[[int], list[str]]:
    return lambda code: []


def _numbers(folder: Path, models: bool) -> dict[str, Any]:
    """All that a run says, but for what a clock says."""
    from coterie.experiments.run_folder import load_state

    def told(record: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in record.items() if name not in MEASURED}

    stack = {"models": load_state(folder / "state.safetensors").stack.params.tobytes()} if models else {}
    return {
        "summary": told(json.loads((folder / "summary.json").read_text())),
        "records": [told(json.loads(line)) for line in (folder / "rounds.jsonl").read_text().splitlines()],
        "labels": np.load(folder / "labels.npy").tolist(),
        "clients": (folder / "clients.csv").read_text(),
        **stack,
    }
