"""From the losses of clients on data that no model has seen to a decision: one model, clusters, local models, or none.

All comparisons are of the same clients, so their intervals are of the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import scipy

from coterie.typing import Array

ONE, CLUSTERS, LOCAL, CANNOT_TELL = "one model", "clusters", "local models", "cannot tell"
"""The decisions."""

GUESS = "guessing"
"""The name of the model that ignores its inputs, among the trials."""

NOT_LEARNT = "the models have not learnt anything yet; train longer, or otherwise"

LEVEL = 0.95
"""The level of the intervals of gains."""

SMALL = 0.1
"""A gain matters if it is more than this share of what has been learnt, or of the loss that one model still has."""

NEGLIGIBLE = 0.02
"""Less than this share of what has been learnt never matters, however small the loss that one model still has."""

FEWEST = 4
"""With fewer clients there is no interval, and so no decision."""


@dataclass(frozen=True)
class Gain:
    """How much less the loss of one kind of models is than that of another: the mean over clients and its interval."""

    mean: float
    low: float
    high: float


def gain(losses: Array, others: Array) -> Gain:
    """Return the gain of ``losses`` over those of ``others``, paired by client, with its t interval.

    >>> import numpy as np
    >>> found = gain(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 4.0, 4.0, 6.0]))
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (1.5, 0.581, 2.419)
    """
    differences = others - losses
    spread = float(differences.std(ddof=1)) / len(differences) ** 0.5
    width = float(scipy.special.stdtrit(len(differences) - 1, (1 + LEVEL) / 2)) * spread
    mean = float(differences.mean())
    return Gain(mean, mean - width, mean + width)


@dataclass(frozen=True)
class Decision:
    """What to do, why, and the gains on which it rests: of learning over guessing, of others over one model."""

    what: str
    why: str
    gains: Mapping[str, Gain]


def decide(losses: Mapping[str, Array]) -> Decision:
    """Decide from the losses of the same clients: guessing, one model, local models and maybe clusters.

    Clusters must beat one model, and local models must beat both; where neither does, one model is enough only if the
    intervals leave no room for a gain that matters.
    """
    if len(losses[ONE]) < FEWEST:
        return Decision(CANNOT_TELL, f"{len(losses[ONE])} clients are too few to compare", {})
    others = [name for name in (CLUSTERS, LOCAL) if name in losses]
    gains = {name: gain(losses[name], losses[ONE]) for name in others}
    learnt = {name: gain(losses[name], losses[GUESS]) for name in (ONE, *others)}
    best = max(learnt.values(), key=lambda each: each.mean)
    gains["learnt"] = best
    if not any(each.low > 0 for each in learnt.values()):
        return Decision(CANNOT_TELL, NOT_LEARNT, gains)
    matters = max(SMALL * min(best.mean, float(losses[ONE].mean())), NEGLIGIBLE * best.mean)
    better = [name for name in others if gains[name].low > 0 and gains[name].mean > matters and learnt[name].low > 0]
    if better == [CLUSTERS]:
        return Decision(CLUSTERS, "clusters predict held-out data better than one model, local models do not", gains)
    if better == [LOCAL]:
        return Decision(LOCAL, "local models predict held-out data better than one model, clusters do not", gains)
    if better:
        gains["local over clusters"] = gain(losses[LOCAL], losses[CLUSTERS])
        if gains["local over clusters"].low > 0:
            return Decision(LOCAL, "local models predict held-out data better than clusters and than one model", gains)
        return Decision(
            CLUSTERS, "clusters predict held-out data better than one model, and local models no better", gains
        )
    room = max((gains[name].high for name in others), default=0.0)
    if room > matters:
        return Decision(CANNOT_TELL, "the gain over one model may matter or not, these data do not show it", gains)
    return Decision(ONE, "neither clusters nor local models predict held-out data better", gains)
