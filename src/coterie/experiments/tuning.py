"""Search for good settings, judged on validation data only.

A candidate is a setting of the run (``lr``, ``batch``, ``clusters``) or an argument of the algorithm (``strength``)
with a value each. The test split plays no part: candidates are ranked by the mean over seeds of the score on data
that each client set aside from its own train examples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from coterie.algorithms import RANGES, OfRounds, parts
from coterie.errors import UnknownName, UsageError
from coterie.experiments.building import build_algorithm
from coterie.experiments.main_score import Score, score_of
from coterie.experiments.session import ShowRun
from coterie.experiments.settings import Settings, make_settings
from coterie.experiments.sweep import Make, run_all, slug
from coterie.files import write_atomically
from coterie.limits import CANDIDATES, check_most
from coterie.seeding import generator
from coterie.textforms import Value, parse, read_value, with_arguments

Candidate = Mapping[str, Value]
ShowPlan = Callable[[Sequence[Settings], Callable[[Settings], str]], AbstractContextManager[ShowRun]]
"""``(plan, label of a run) -> context``: how the runs of a plan are shown."""

VALIDATION = 0.2
"""The share of train data set aside where the settings name none."""

FIXED = (
    "algorithm",
    "data",
    "classes",
    "partition",
    "clients",
    "weigh_by",
    "metric",
    "join",
    "leave",
    "seed",
    "validation",
    "runtime",
    "threads",
    "plan",
    "device",
    "track",
)
"""Settings that cannot be searched: candidates with other values of these could not be compared."""


@dataclass(frozen=True)
class Interval:
    """All numbers between two, drawn on a logarithmic scale where both are positive; evenly if both are whole."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> Value:
        """Draw one of the numbers, to four digits."""
        part = float(rng.random())
        if isinstance(self.low, int) and isinstance(self.high, int):
            return int(self.low + part * (self.high + 1 - self.low))
        if self.low > 0:
            return float(f"{math.exp(math.log(self.low) + part * math.log(self.high / self.low)):.4g}")
        return float(f"{self.low + part * (self.high - self.low):.4g}")


Range = Interval | tuple[Value, ...]


def parse_range(text: str) -> tuple[str, Range]:
    """Read a name and the values to try.

    >>> parse_range("lr=0.01,0.1")
    ('lr', (0.01, 0.1))
    >>> parse_range("strength=0.01..1")
    ('strength', Interval(low=0.01, high=1))
    """
    name, equals, words = text.partition("=")
    low, dots, high = words.partition("..")
    values = tuple(read_value(word.strip()) for word in ((low, high) if dots else words.split(",")))
    if not equals or not name.strip() or "" in values:
        raise UsageError(f"cannot read the range {text!r}; write lr=0.01,0.03,0.1 or, with --tries, lr=0.001..0.1")
    if not dots:
        return name.strip().replace("-", "_"), values
    first, last = values
    if not (isinstance(first, int | float) and isinstance(last, int | float) and first < last):
        raise UsageError(f"the range {text!r} must go from a smaller number to a larger, such as lr=0.001..0.1")
    return name.strip().replace("-", "_"), Interval(first, last)


def ranges_for(base: Settings, given: Sequence[str]) -> dict[str, Range]:
    """Return the given ranges, or the published ones of the algorithm; refuse a name that cannot be set."""
    chosen = dict(parse_range(text) for text in given) or published(base)
    own = [(call.name, name) for call in parse(base.algorithm) for name in parts.arguments(call.name)]
    known = [*_settable(), *(name for _, name in own), *(".".join(both) for both in own)]
    for name in chosen:
        if name in FIXED or name not in known:
            raise UnknownName(f"setting or argument of {base.algorithm} to search", name, known)
    return chosen


def published(base: Settings) -> dict[str, Range]:
    """Return the published ranges of an algorithm, without the values that it refuses.

    It refuses an argument that it does not read, and a warm-up for which there are too few rounds.
    """
    build_algorithm(base)
    known = dict(RANGES[""])
    for call in parse(base.algorithm):
        known |= RANGES.get(call.name, {})
    found: dict[str, Range] = {}
    for name, values in known.items():
        wanted = values.within(base.rounds) if isinstance(values, OfRounds) else values
        taken = tuple(value for value in wanted if _takes(base, {name: value}))
        found |= {name: taken} if taken else {}
    return found


def _takes(base: Settings, candidate: Candidate) -> bool:
    try:
        settings_of(base, candidate)
    except UsageError:
        return False
    return True


def candidates(ranges: Mapping[str, Range], tries: int | None, seed: int = 0) -> list[Candidate]:
    """Return every combination of the values; or, with ``tries``, this many different ones at random.

    >>> candidates({"lr": (0.1, 1), "batch": (8,)}, None)
    [{'lr': 0.1, 'batch': 8}, {'lr': 1, 'batch': 8}]
    """
    if tries is None:
        endless = [name for name, values in ranges.items() if isinstance(values, Interval)]
        if endless:
            raise UsageError(f"{endless[0]} ranges over an interval; say how many random --tries, or list its values")
        values = [values for values in ranges.values() if not isinstance(values, Interval)]
        many = math.prod(map(len, values))
        check_most("the number of candidates", many, CANDIDATES, "list fewer values, or say how many random --tries")
        return [dict(zip(ranges, point, strict=True)) for point in itertools.product(*values)]
    if tries < 1:
        raise UsageError(f"tries is {tries}; it must be at least 1")
    check_most("tries", tries, CANDIDATES)
    rng = generator(seed, "tune")
    found: dict[str, Candidate] = {}
    for _ in range(20 * tries):
        point = {name: _draw(values, rng) for name, values in ranges.items()}
        found.setdefault(describe(point), point)
        if len(found) == tries:
            break
    return list(found.values())


def _draw(values: Range, rng: np.random.Generator) -> Value:
    return values.draw(rng) if isinstance(values, Interval) else values[int(rng.integers(len(values)))]


def describe(candidate: Candidate) -> str:
    """Return a candidate in words: ``lr=0.1 batch=8``."""
    return " ".join(f"{name}={value}" for name, value in candidate.items())


def settings_of(base: Settings, candidate: Candidate) -> Settings:
    """Return the settings of a candidate: a value is a setting where there is one of its name, else an argument."""
    own = {name: value for name, value in candidate.items() if name in _settable()}
    rest = {name: value for name, value in candidate.items() if name not in own}
    text = with_arguments(base.algorithm, rest, parts)
    made = make_settings({**base.table(), **own, "algorithm": text}, f"candidate {describe(candidate)}")
    build_algorithm(made)
    return replace(made, validation=base.validation or VALIDATION)


@dataclass(frozen=True)
class Result:
    """A candidate with its validation scores, one a seed; larger is better. ``main``: what they are scores of."""

    candidate: Candidate
    scores: tuple[float, ...]
    main: Score

    @property
    def mean(self) -> float:
        """Return the score by which candidates are ranked; one that diverged is last."""
        return float(np.mean(self.scores))


def score(summary: Mapping[str, Any]) -> float:
    """Return the main score of a run on the validation split, negative where smaller is better; a larger one wins."""
    main = score_of(summary)
    value = summary.get(f"validation_{main.column}")
    return -math.inf if value is None else main.sign * float(value)


def search(
    base: Settings,
    points: Sequence[Candidate],
    seeds: Sequence[int],
    out: Path | None,
    *,
    show: ShowPlan,
    make: Make | None = None,
) -> list[Result]:
    """Run every candidate on every seed and return the best first; read the runs that are finished in ``out``.

    ``make``: as for ``sweep.run_all``.
    """
    made = [settings_of(base, point) for point in points]
    plan = {
        replace(settings, seed=seed, references=False): point
        for seed in seeds
        for settings, point in zip(made, points, strict=True)
    }
    scores: dict[str, list[float]] = {describe(point): [] for point in points}

    def folder_of(settings: Settings) -> Path | None:
        return None if out is None else out / slug(describe(plan[settings])) / f"seed-{settings.seed}"

    with show(list(plan), lambda settings: describe(plan[settings])) as show_run:
        for done in run_all(list(plan), folder_of, show_run, make):
            scores[describe(plan[done.settings])].append(score(done.summary))
            main = score_of(done.summary)
    results = [Result(point, tuple(scores[describe(point)]), main) for point in points]
    return sorted(results, key=lambda result: -result.mean)


def write_best(base: Settings, best: Candidate, out: Path) -> Path:
    """Write the best settings as an experiment file, without validation, so that all train data are used."""
    chosen = replace(settings_of(base, best), validation=base.validation, seed=base.seed)
    path = out / "best.toml"
    write_atomically(path, tomli_w.dumps(chosen.table()).encode())
    return path


def at_edge(best: Candidate, ranges: Mapping[str, Range]) -> list[str]:
    """Return the names of values that are the smallest or largest of those tried, so that better may lie beyond."""
    found = []
    for name, values in ranges.items():
        numbers = [v for v in values if isinstance(v, int | float)] if isinstance(values, tuple) else []
        if len(numbers) > 2 and best[name] in (min(numbers), max(numbers)):
            found.append(name)
    return found


def _settable() -> list[str]:
    return [f.name for f in fields(Settings) if f.name not in FIXED]
