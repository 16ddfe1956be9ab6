"""Methods in which every client chooses its cluster itself, among all cluster models."""

from __future__ import annotations

from coterie.algorithms.method import always, method
from coterie.errors import UsageError
from coterie.protocol.task import Fit, Loss, Task
from coterie.server.assign import keep
from coterie.server.loop import Algorithm
from coterie.server.start import farthest_first, random_models


@method
def ifca(
    clusters: int = 2,
    start: str = "farthest",
    fresh: bool = False,
    examples: int | None = None,
    fit: Fit = Fit(),
) -> Algorithm:
    """Each client picks, among all cluster models, the one of least loss on its train data, and trains that.

    c(i) = argmin_k L_i(T_k); T_k <- mean of its clients by examples. Ghosh et al., "An efficient framework for
    clustered federated learning", 2020; HypCluster of Mansour et al., 2020. Identical starts collapse into FedAvg, and
    random ones (``start=random``, the paper's) may merge two groups, so the default is farthest-first. ``fresh`` lets a
    client choose again before it is tested; ``examples`` lets it choose on its first so many.
    Costs K models down to every client in every round.
    """
    starts = {"farthest": farthest_first(clusters, fit), "random": random_models(clusters)}
    if start not in starts:
        raise UsageError(f"start is {start!r}; it must be farthest or random")
    choose = (Loss(examples=examples),)
    return Algorithm(
        start=starts[start],
        task=always(Task(choose=choose, fit=(fit,))),
        assign=keep(),
        serve=Task(choose=choose) if fresh else Task(),
    )
