"""Cross losses of many clients: everybody's losses under the models of a sample, its landmarks.

All losses are m x m; under s landmarks they are m x s. The landmarks are compared with each other by the very distance
of lcfl. Any other client has one of its two terms for each landmark, by which it joins the nearest of their clusters:
how much worse than its own model their models fit it (eq. 2), or how differently they fit it and their own clients
(eq. 6). Clients of one distribution have the same expected loss under every model, so they have the same term.
"""

from __future__ import annotations

import numpy as np

from coterie.protocol.replies import Replies
from coterie.protocol.report import Report
from coterie.server.contract import Ask
from coterie.server.distances.many_clients import CELLS, Distances, Sampled, drawn
from coterie.server.distances.vectors import Measure, ask_losses, finite, loss_distance
from coterie.typing import Array


def of_landmark_losses(symmetric_in: str = "data", bounded: str | None = None) -> Measure:
    """Measure distances to a sample by losses under its models; clients that do not answer cannot be measured."""
    formula, alone = loss_distance(symmetric_in), symmetric_in == "data"
    report = Report(params=None, losses=True, bounded=bounded, differences=alone)

    def measure(replies: Replies, starts: Array, ask: Ask) -> tuple[Replies, Distances]:
        sample = drawn(len(replies), replies.sketching)
        losses = landmark_losses(replies, sample, ask, report)
        unheard = np.asarray(np.isnan(losses).any(axis=1))
        heard, known = ~unheard, ~unheard[sample]
        losses, sample = losses[heard][:, known], (np.cumsum(heard) - 1)[sample[known]]
        own = np.zeros(len(sample)) if alone else np.diag(losses[sample])

        def away(rows: slice) -> Array:
            found: Array = np.abs(losses[rows] - own)
            return found

        by, limit = f"losses under {len(sample):,} models", replies.sketching.exact_clients
        among = formula(losses[sample].astype(np.float64))
        return replies.without(unheard, {}), Sampled(sample, among, len(losses), away, by, limit)

    return measure


def landmark_losses(replies: Replies, sample: Array, ask: Ask, report: Report) -> Array:
    """Return each client's report on the models of the sample ``(m, s)``, NaN for clients that do not answer."""
    losses = np.full((len(replies), len(sample)), np.nan, dtype=np.float32)
    everyone, some = np.arange(len(replies)), max(1, CELLS // len(sample))
    for models, answered, scored in ask_losses(report, replies, everyone, sample, ask, some):
        assert scored.losses is not None, "the task asked for losses"
        columns = np.searchsorted(sample, models)
        losses[np.ix_(answered, columns)] = np.where(np.isfinite(scored.losses), scored.losses, np.inf)
    if report.differences:
        losses[sample, np.arange(len(sample))] = 0
    return finite(losses)
