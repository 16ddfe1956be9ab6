"""The ratios that `make bench` found before, in baseline.json, and what has become slower since.

Ratios of speeds, unlike times, survive a change of the hour; they do not survive a change of the processor, so the
baseline says where it was measured.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks import machine

FILE = Path(__file__).with_name("baseline.json")
SLOWER = 0.2
"""The share of a ratio that may be lost before it is worth a line."""

Ratios = dict[str, dict[str, float]]
"""By model, then by the two that are compared."""


def ratios(seconds: dict[str, float], plain: str = "plain loop", chosen: str = "auto") -> dict[str, float]:
    """Return the speed of each plan relative to the plain loop, and of the chosen plan relative to the others.

    >>> ratios({"plain loop": 6.0, "auto": 2.0, "single": 3.0})
    {'auto / plain loop': 3.0, 'single / plain loop': 2.0, 'auto / single': 1.5}
    """
    plans = {name: time for name, time in seconds.items() if name != plain}
    against = {f"{name} / {plain}": round(seconds[plain] / time, 3) for name, time in plans.items()}
    others = {name: time for name, time in plans.items() if name != chosen}
    return against | {f"{chosen} / {name}": round(time / plans[chosen], 3) for name, time in others.items()}


def slower(now: Ratios, before: Ratios) -> Iterator[str]:
    """Yield a line for each ratio that has lost more than a fifth.

    >>> list(slower({"cnn": {"auto / single": 1.0, "auto / plain loop": 1.9}}, {"cnn": {"auto / single": 1.5}}))
    ['cnn: auto / single was 1.50 and is 1.00, 33 % less']
    """
    for model, found in now.items():
        for pair, ratio in found.items():
            old = before.get(model, {}).get(pair)
            if old is not None and ratio < (1 - SLOWER) * old:
                yield f"{model}: {pair} was {old:.2f} and is {ratio:.2f}, {100 * (1 - ratio / old):.0f} % less"


def verdict(now: Ratios, file: Path = FILE) -> str:
    """Return what has become slower than in the baseline, a line each, or that nothing has."""
    if not file.exists():
        return "no baseline yet: --save writes one"
    kept = json.loads(file.read_text())
    lines = [f"SLOWER {line}" for line in slower(now, kept["ratios"])]
    here = "" if kept["machine"] == machine.describe() else f" (another machine: {kept['machine']})"
    return "\n".join(lines or [f"nothing is slower by more than 20 % than on {kept['date']}{here}"])


def save(now: Ratios, file: Path = FILE) -> None:
    """Write the baseline; models that were not measured now keep their ratios."""
    kept = json.loads(file.read_text())["ratios"] if file.exists() else {}
    found = {"machine": machine.describe(), "date": f"{datetime.date.today()}", "ratios": kept | now}
    file.write_text(json.dumps(found, indent=2) + "\n")
