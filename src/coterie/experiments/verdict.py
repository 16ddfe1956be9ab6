"""The verdict on a run: do its models beat guessing, one model for all and local models, by how much, and for whom?

It is made of the rows of ``clients.csv``: beside a client's score stands what others score on the same test examples,
``guess_accuracy``, ``one_model_accuracy``, ``local_accuracy``. Intervals are over clients: with other clients of the
same kind the mean difference would be in there 95 times of 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from coterie.engine.metric_functions import METRICS, find_metric
from coterie.seeding import generator
from coterie.typing import Array

Row = Mapping[str, Any]

GUESS, ONE_MODEL, LOCAL = "guess", "one_model", "local"
"""With whom a run is compared; the column of their score in ``clients.csv`` begins with this word."""

NAMES = {GUESS: "guessing", ONE_MODEL: "one model", LOCAL: "local models"}
"""How a text calls them."""

ENOUGH = 30
"""Test examples from which on the score of a single client says something."""

FEW = 6
"""With fewer clients an interval over clients is too narrow, and the text says so."""

SAMPLES, NUMBERS = 2000, 1 << 24
"""Samples of clients behind an interval; fewer where they would be more than so many numbers."""

LEVEL = 95
"""Intervals hold this share of the samples, in percent."""

EQUAL = 1e-9
"""Scores that differ by less are equal."""

BETTER, WORSE, UNCLEAR = "better", "worse", "unclear"


@dataclass(frozen=True)
class Score:
    """The score by which clients are compared, its column in ``clients.csv``, and how a text shows it.

    ``squared``: over clients it is the root of the mean of its squares, as that of errors is; otherwise it is the mean.
    """

    column: str
    name: str
    smaller: bool = False
    squared: bool = False
    scale: float = 1.0
    unit: str = ""

    def over_clients(self, values: Array, weights: Array) -> Array:
        """Return the score over clients, by weights ``(..., clients)``."""
        mean: Array = weights @ (values**2 if self.squared else values) / weights.sum(axis=-1)
        return np.sqrt(mean) if self.squared else mean

    def show(self, value: float, sign: str = "") -> str:
        """Return a value of this score, or with a sign a difference of two, as a text shows it."""
        digits = 1 if self.unit else 3
        shown = f"{value * self.scale:{sign}.{digits}f}"
        return f"{value * self.scale:{sign}.4g}" if not self.unit and abs(value) >= 10 else shown

    def in_unit(self, value: float) -> str:
        """Return a value of this score with its unit."""
        return f"{self.show(value)} {self.unit}".rstrip()


def main_score(regression: bool, metric: str | None = None) -> Score:
    """Return the score of a run by which a verdict is made: the metric that the user named, else accuracy or rmse.

    >>> main_score(True).name, main_score(False, "balanced_accuracy").column
    ('rmse', 'metric')
    """
    if metric is not None:
        found, call = find_metric(metric)
        return Score("metric", str(call).rpartition(":")[2], found.smaller)
    if regression:
        return Score("rmse", "rmse", smaller=True, squared=True)
    return Score("accuracy", "accuracy", scale=100.0, unit="%")


@dataclass(frozen=True)
class Against:
    """How a run's models compare with others on the same test examples.

    ``theirs`` is their score over clients; ``change`` is ours minus theirs, ``low`` to ``high`` its interval (None with
    a single client); ``better`` and ``worse`` count clients; ``outcome`` is unclear where 0 is in the interval.
    """

    theirs: float
    change: float
    low: float | None
    high: float | None
    better: int
    worse: int
    clients: int
    outcome: str


def compare_scores(ours: Array, theirs: Array, weights: Array, score: Score) -> Against | None:
    """Compare two scores of the same clients, paired; None where no client has both.

    >>> found = compare_scores(np.array([0.9, 0.8]), np.array([0.7, 0.7]), np.ones(2), Score("accuracy", "accuracy"))
    >>> round(found.change, 2), round(found.low, 2), round(found.high, 2), found.outcome
    (0.15, 0.1, 0.2, 'better')
    """
    known = np.isfinite(ours) & np.isfinite(theirs) & (weights > 0)
    if not known.any():
        return None
    ours, theirs, weights = ours[known], theirs[known], weights[known].astype(np.float64)
    value, other = (float(score.over_clients(each, weights)) for each in (ours, theirs))
    sign = -1 if score.smaller else 1
    gains = sign * (ours - theirs)
    low, high = _interval(ours, theirs, weights, score) if known.sum() > 1 else (None, None)
    return Against(
        theirs=other,
        change=value - other,
        low=low,
        high=high,
        better=int((gains > EQUAL).sum()),
        worse=int((gains < -EQUAL).sum()),
        clients=int(known.sum()),
        outcome=_outcome(low, high, sign),
    )


def _interval(ours: Array, theirs: Array, weights: Array, score: Score) -> tuple[float, float]:
    """Return the interval of the difference over samples of clients, drawn with replacement."""
    count = len(ours)
    samples = max(200, min(SAMPLES, NUMBERS // count))
    drawn = generator(0, "verdict").multinomial(count, np.full(count, 1 / count), size=samples) * weights
    changes = score.over_clients(ours, drawn) - score.over_clients(theirs, drawn)
    low, high = np.percentile(changes, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)


def _outcome(low: float | None, high: float | None, sign: int) -> str:
    if low is None or high is None or (low <= EQUAL and high >= -EQUAL):
        return UNCLEAR
    return BETTER if (low > 0) == (sign > 0) else WORSE


LEARNT, ONLY_CHANCES, NOTHING, UNKNOWN = "yes", "only in its probabilities", "nothing", "unknown"
"""Whether a run has learnt anything beyond guessing."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run.

    score     the score by which it is made, and ``value`` that of the run over clients
    learnt    whether it learnt anything beyond guessing: yes, only in its probabilities, nothing, unknown
    against   the comparison with guessing, one model and local models, as far as they are known
    missing   why the others are not known, and how to get them
    few_rows  how many of ``clients`` have fewer than 30 test examples
    """

    score: Score
    value: float | None
    learnt: str
    clients: int
    few_rows: int
    against: Mapping[str, Against] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def table(self) -> dict[str, Any]:
        """Return the verdict as JSON values, with its text."""
        found = {name: asdict(each) for name, each in self.against.items()}
        known = {name: getattr(self, name) for name in ("learnt", "value", "clients", "few_rows")}
        return {"score": self.score.name, **known, "against": found, "missing": dict(self.missing), "text": self.text}

    @property
    def text(self) -> str:
        """Return the verdict in words: a sentence, a line for each comparison, and what to be careful about."""
        lines = [f"Verdict: {self.sentence}."]
        if self.against:
            lines += aligned([_heads(self.score), *(_cells(NAMES[k], v, self.score) for k, v in self.against.items())])
        lines += [f"  {NAMES[name]}: {why}" for name, why in self.missing.items()]
        return "\n".join([*lines, *(f"  {line}" for line in self._cautions())])

    @property
    def sentence(self) -> str:
        """Return what the verdict comes to, in one sentence."""
        if self.learnt == NOTHING:
            ours, guess = (self.score.in_unit(each) for each in (self.value or 0.0, self.against[GUESS].theirs))
            return f"nothing was learnt beyond guessing: {self.score.name} {ours}, and guessing has {guess}"
        words = {BETTER: "better than {}", WORSE: "worse than {}", UNCLEAR: "no clear difference to {}"}
        by_outcome = {each: [NAMES[k] for k, v in self.against.items() if v.outcome == each] for each in words}
        said = [words[each].format(_listed(names)) for each, names in by_outcome.items() if names]
        return "; ".join(said) or "there is nothing to compare it with"

    def _cautions(self) -> Iterable[str]:
        """Yield what limits the verdict."""
        if self.learnt == NOTHING:
            yield "train longer or otherwise (--rounds, --epochs, --lr) before you compare methods;"
        if self.learnt in (NOTHING, ONLY_CHANCES) and self.score.column == "accuracy":
            metric = next(name for name in ("auroc", "balanced_accuracy") if name in METRICS)
            if self.learnt == ONLY_CHANCES:
                yield "its classes are no better than always the most frequent one, but its probabilities are:"
            yield f"where one class is rare, judge by --metric {metric}, which guessing cannot win"
        if 1 < self.clients < FEW and self.against:
            yield f"only {self.clients} clients: the intervals say little of other clients"
        if self.few_rows:
            few = f"{self.few_rows} of {self.clients} clients have fewer than {ENOUGH} test examples"
            yield f"{few}: what is better for one of them may be chance"


def _listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence.

    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _heads(score: Score) -> tuple[str, ...]:
    unit = f", {score.unit}" if score.unit else ""
    return ("against", f"{score.name}{unit}", f"change ({LEVEL} % interval)", "better for", "worse for")


def _cells(name: str, found: Against, score: Score) -> tuple[str, ...]:
    between = "" if found.low is None or found.high is None else f" ({score.show(found.low, '+')} to "
    between += "" if found.high is None else f"{score.show(found.high, '+')})"
    change = f"{score.show(found.change, '+')}{between}"
    return (name, score.show(found.theirs), change, f"{found.better} of {found.clients}", str(found.worse))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with columns that line up, indented by two.

    >>> aligned([("a", "b"), ("long", "c")])
    ['  a     b', '  long  c']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [("  " + "  ".join(cells)).rstrip() for cells in padded]


def judge(
    rows: Sequence[Row], score: Score, weigh_by: str = "test", missing: Mapping[str, str] | None = None
) -> Verdict:
    """Return the verdict on the rows of a run's ``clients.csv``; ``missing``: why some are not compared with."""
    ordered = sorted(rows, key=lambda row: str(row["client"]))
    weights, ours = column_of(ordered, weigh_by), column_of(ordered, score.column)
    known = np.isfinite(ours) & (weights > 0)
    against: dict[str, Against] = {}
    for other in NAMES:
        found = compare_scores(ours, column_of(ordered, f"{other}_{score.column}"), weights, score)
        if found is not None:
            against[other] = found
    return Verdict(
        score=score,
        value=float(score.over_clients(ours[known], weights[known])) if known.any() else None,
        learnt=_learnt(ordered, against.get(GUESS), weights),
        clients=int(known.sum()),
        few_rows=int((column_of(ordered, "test")[known] < ENOUGH).sum()),
        against=against,
        missing={name: why for name, why in (missing or {}).items() if name not in against},
    )


def column_of(rows: Sequence[Row], name: str) -> Array:
    """Return a column of numbers; NaN where a row has none, or an infinite one."""
    found = np.array([float(value) if (value := row.get(name, "")) != "" else np.nan for row in rows])
    return np.where(np.isfinite(found), found, np.nan)


def _learnt(rows: Sequence[Row], against: Against | None, weights: Array) -> str:
    """Return whether the models know more than guessing does, by the score, or by the loss of their probabilities."""
    if against is None:
        return UNKNOWN
    if is_better(against):
        return LEARNT
    loss = Score("loss", "loss", smaller=True)
    pair = compare_scores(column_of(rows, "loss"), column_of(rows, f"{GUESS}_loss"), weights, loss)
    return ONLY_CHANCES if pair is not None and is_better(pair) else NOTHING


def is_better(found: Against) -> bool:
    """Return whether a comparison is in our favour; a single client, which has no interval, by its scores."""
    return found.outcome == BETTER if found.low is not None else found.better > 0
