"""The verdict on a run: do its models beat guessing, one model for all and local models, by how much, and for whom?

It is made of the rows of ``clients.csv``: beside a client's score stands what others score on the same test examples,
``guess_accuracy``, ``one_model_accuracy``, ``local_accuracy``. Intervals are over clients: with other clients of the
same kind the mean difference would be in there 95 times of 100.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from coterie.experiments.main_score import ACCURACY, RMSE, SPLIT, Score
from coterie.experiments.statistics import (
    BY_CLIENT,
    EQUAL,
    LEVEL,
    OVER_CLIENTS,
    holm,
    interval_over_clients,
    signed_rank_test,
)
from coterie.typing import Array

Row = Mapping[str, Any]

GUESS, ONE_MODEL, LOCAL = "guess", "one_model", "local"
"""With whom a run is compared; the column of their score in ``clients.csv`` begins with this word."""

NAMES = {GUESS: "guessing", ONE_MODEL: "one model", LOCAL: "local models"}
"""How a text calls them."""

ENOUGH = 30
"""Test examples from which on the score of a single client says something."""

FEW = 6
"""With fewer clients an interval over clients is wide and says little, and the text says so."""

LARGE_P = 0.25
"""From here on a test and an interval without 0 do not say the same."""

WIDTH = 88
"""Letters of a line of the text."""

BETTER, WORSE, UNCLEAR = "better", "worse", "unclear"


@dataclass(frozen=True)
class Against:
    """How a run's models compare with others on the same test examples.

    ``theirs`` is their score over clients; ``change`` is ours minus theirs, ``low`` to ``high`` its interval (None with
    a single client); ``better`` and ``worse`` count clients; ``outcome`` is unclear where 0 is in the interval.
    ``p`` is of the signed-rank test over clients (None where all are equal), ``p_holm`` corrected for all comparisons
    of a table. ``lost`` is by how much the clients that are worse off lose, on average (None if there are none).
    ``uneven`` says whether some clients count more than others.
    """

    theirs: float
    change: float
    low: float | None
    high: float | None
    better: int
    worse: int
    clients: int
    outcome: str
    p: float | None = None
    p_holm: float | None = None
    lost: float | None = None
    uneven: bool = False


def compare_scores(ours: Array, theirs: Array, weights: Array, score: Score) -> Against | None:
    """Compare two scores of the same clients, paired; None where no client has both.

    >>> found = compare_scores(np.array([0.9, 0.8]), np.array([0.7, 0.7]), np.ones(2), Score("accuracy", "accuracy"))
    >>> round(found.change, 2), round(found.low, 2), round(found.high, 2), found.outcome
    (0.15, -0.49, 0.79, 'unclear')
    """
    known = np.isfinite(ours) & np.isfinite(theirs) & (weights > 0)
    if not known.any():
        return None
    ours, theirs, weights = ours[known], theirs[known], weights[known].astype(np.float64)
    value, other = (float(score.over_clients(each, weights)) for each in (ours, theirs))
    gains = score.sign * (ours - theirs)
    low, high = interval_over_clients(ours, theirs, weights, score.squared) or (None, None)
    p = signed_rank_test(ours, theirs)
    losses = -gains[gains < -EQUAL]
    return Against(
        theirs=other,
        change=value - other,
        low=low,
        high=high,
        better=int((gains > EQUAL).sum()),
        worse=int((gains < -EQUAL).sum()),
        clients=int(known.sum()),
        outcome=_outcome(low, high, score.sign),
        p=p,
        p_holm=p,
        lost=float(losses.mean()) if losses.size else None,
        uneven=bool(np.ptp(weights) > 0),
    )


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
    without   how many further clients have no value of the score
    diverged  for how many clients the model diverged: then the run is not better than anything
    absent, undefined  how many of those without a value did not answer, and how many have examples that give none
    weigh_by  by the examples of which split clients count
    """

    score: Score
    value: float | None
    learnt: str
    clients: int
    few_rows: int
    against: Mapping[str, Against] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    without: int = 0
    diverged: int = 0
    absent: int = 0
    undefined: int = 0
    weigh_by: str = SPLIT

    def table(self) -> dict[str, Any]:
        """Return the verdict as JSON values, with its text."""
        found = {name: asdict(each) for name, each in self.against.items()}
        names = ("learnt", "value", "clients", "without", "diverged", "absent", "undefined", "few_rows", "weigh_by")
        known = {name: getattr(self, name) for name in names}
        how = {"split": SPLIT, "level": LEVEL, "interval": OVER_CLIENTS, "test": f"{BY_CLIENT}, corrected by Holm"}
        said = {"against": found, "missing": dict(self.missing), "text": self.text}
        return {"score": self.score.name, **known, **how, **said}

    @property
    def text(self) -> str:
        """Return the verdict in words: a sentence, a line for each comparison, and what to be careful about."""
        lines = [f"Verdict: {self.sentence}."]
        if self.against:
            lines += aligned([_heads(self.score), *(_cells(NAMES[k], v, self.score) for k, v in self.against.items())])
            lines += _wrapped(f"{self.basis}; p: {BY_CLIENT}, corrected by Holm")
        lines += [f"  {NAMES[name]}: {why}" for name, why in self.missing.items()]
        return "\n".join([*lines, *(each for said in (*self.cautions, *self.next_steps) for each in _wrapped(said))])

    @property
    def basis(self) -> str:
        """Return which examples, weights and intervals the numbers are of, in a line."""
        weights = f"clients count by {self.weigh_by} examples"
        return f"last round's models, {SPLIT} split, {weights}, {LEVEL} % intervals over clients"

    @property
    def sentence(self) -> str:
        """Return what the verdict comes to, in one sentence."""
        if self.diverged:
            who = f"the models of {self.diverged} of {self.clients + self.without} clients"
            return f"{who} diverged, and the others must not hide it; train more carefully (a smaller --lr)"
        if self.learnt == NOTHING:
            ours, guess = (self.score.in_unit(each) for each in (self.value or 0.0, self.against[GUESS].theirs))
            return f"nothing was learnt beyond guessing: {self.score.name} {ours}, and guessing has {guess}"
        words = {BETTER: "better than {}", WORSE: "worse than {}", UNCLEAR: "no clear difference to {}"}
        by_outcome = {each: [NAMES[k] for k, v in self.against.items() if v.outcome == each] for each in words}
        said = [words[each].format(_listed(names)) for each, names in by_outcome.items() if names]
        return "; ".join(said) or "there is nothing to compare it with"

    @property
    def cautions(self) -> Iterable[str]:
        """Yield what limits the verdict."""
        if self.learnt == NOTHING:
            yield "train longer or otherwise (--rounds, --epochs, --lr) before you compare methods"
        if self.learnt in (NOTHING, ONLY_CHANCES) and self.score.column == ACCURACY:
            but = "its classes are no better than always the most frequent one, but its probabilities are: "
            rare = "where one class is rare, judge by --metric auroc, which guessing cannot win"
            yield f"{but * (self.learnt == ONLY_CHANCES)}{rare}"
        if 1 < self.clients < FEW and self.against:
            yield f"only {self.clients} clients: the intervals say little of other clients"
        if self.absent:
            yield f"{self.absent} of {self.clients + self.without} clients did not answer; they do not count"
        if self.undefined:
            why = f" ({self.score.why})" if self.score.why else ""
            some = f"{self.undefined} of {self.clients + self.without} clients"
            yield f"{self.score.name}: {some} have no value{why}; they do not count"
        if self.few_rows:
            few = f"{self.few_rows} of {self.clients} clients have fewer than {ENOUGH} test examples"
            yield f"{few}: what is better for one of them may be chance"
        if any(_tells_large_from_small(each) for each in self.against.values()):
            who = "it is large clients that differ, which count more in the interval; in p all clients count alike"
            yield f"an interval without 0 beside a large p: {who}"

    @property
    def next_steps(self) -> Iterable[str]:
        """Yield what to try where each client's own model does better."""
        found = self.against.get(LOCAL)
        if found is not None and found.outcome == WORSE and self.learnt != NOTHING:
            how = "compare with more clusters, and with +finetune, which trains the common model further at each client"
            yield f"local models do better: {how}"


def _tells_large_from_small(found: Against) -> bool:
    """Return whether the interval, in which large clients count more, is clear, and the test, of all alike, far off.

    The p value is the uncorrected one: with few clients, Holm's is large even where every client is better.
    """
    return found.uneven and found.clients >= FEW and found.outcome != UNCLEAR and (found.p or 0.0) >= LARGE_P


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence.

    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _heads(score: Score) -> tuple[str, ...]:
    unit = f", {score.unit}" if score.unit else ""
    return ("against", f"{score.name}{unit}", f"change ({LEVEL} % interval)", "p", "better for", "worse for")


def _cells(name: str, found: Against, score: Score) -> tuple[str, ...]:
    between = "" if found.low is None or found.high is None else f" ({score.show(found.low, '+')} to "
    between += "" if found.high is None else f"{score.show(found.high, '+')})"
    change = f"{score.show(found.change, '+')}{between}"
    counts = (f"{found.better} of {found.clients}", str(found.worse))
    return (name, score.show(found.theirs), change, show_p(found.p_holm), *counts)


def show_p(value: float | None) -> str:
    """Return a p value as tables show it.

    >>> show_p(0.0123), show_p(0.00002), show_p(None)
    ('0.012', '<0.001', '—')
    """
    return "—" if value is None else f"{value:.2g}" if value >= 0.001 else "<0.001"


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
    tested, lacking = weights > 0, np.isnan(ours)
    answered, broken = _answered(ordered, score), _diverged(ordered, score)
    diverged = int((broken & tested).sum())
    if diverged:
        against = {name: replace(each, outcome=_not_better(each.outcome)) for name, each in against.items()}
    return Verdict(
        score=score.of_clients,
        value=float(score.over_clients(ours[known], weights[known])) if known.any() and not diverged else None,
        learnt=UNKNOWN if diverged else _learnt(ordered, against.get(GUESS), weights),
        clients=int(known.sum()),
        few_rows=int((column_of(ordered, "test")[known] < ENOUGH).sum()),
        without=int((lacking & tested).sum()),
        diverged=diverged,
        absent=int((lacking & tested & ~answered).sum()),
        undefined=int((lacking & tested & answered & ~broken).sum()),
        weigh_by=weigh_by,
        against=_corrected(against),
        missing={name: why for name, why in (missing or {}).items() if name not in against},
    )


def _told_by(rows: Sequence[Row], score: Score) -> str:
    """Return the column that every client has that answered, whatever its examples."""
    return score.column if score.column == RMSE else "loss" if "loss" in rows[0] else RMSE


def _answered(rows: Sequence[Row], score: Score) -> Array:
    """Return which clients answered when the models were tested."""
    columns = (_told_by(rows, score), score.column)
    return np.array([any(row.get(column, "") != "" for column in columns) for row in rows])


def _diverged(rows: Sequence[Row], score: Score) -> Array:
    """Return for which clients the model's numbers are none: then its error or loss is none, though classes may be."""
    column = _told_by(rows, score)
    return np.array([row.get(column, "") != "" for row in rows]) & np.isnan(column_of(rows, column))


def _not_better(outcome: str) -> str:
    return UNCLEAR if outcome == BETTER else outcome


def _corrected(against: Mapping[str, Against]) -> dict[str, Against]:
    """Return comparisons with p values corrected for all of them."""
    values = holm([each.p for each in against.values()])
    return {name: replace(each, p_holm=p) for (name, each), p in zip(against.items(), values, strict=True)}


def corrected_together(verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """Return the verdicts of one table with p values corrected for all comparisons in it."""
    flat = {(name, which): each for name, verdict in verdicts.items() for which, each in verdict.against.items()}
    made = dict(zip(flat, _corrected({str(i): each for i, each in enumerate(flat.values())}).values(), strict=True))
    return {
        name: replace(verdict, against={which: made[name, which] for which in verdict.against})
        for name, verdict in verdicts.items()
    }


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
    if pair is None or not is_better(pair):
        return NOTHING
    return ONLY_CHANCES if ACCURACY in rows[0] else LEARNT


def is_better(found: Against) -> bool:
    """Return whether a comparison is in our favour; of few clients, whose interval is wide, if nobody is worse off."""
    return found.outcome == BETTER or (found.clients < FEW and found.better > 0 and found.worse == 0)
