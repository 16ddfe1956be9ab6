"""Ways to find the clients' losses under each other's models: exactly, or as well as the clustering needs."""

from __future__ import annotations

from collections.abc import Callable

from coterie.server.clustering.clusterers import Clusterer
from coterie.server.distances.measures import by_losses
from coterie.server.distances.sampled import Sampling, of_sampled_losses
from coterie.server.distances.vectors import KeyedMeasure, plain
from coterie.textforms import Catalogue

Cross = Callable[[str, Clusterer, str | None], KeyedMeasure]
"""``(symmetric_in, clusterer, bounded) -> measure``: the loss distance, who clusters, a bounded loss if any."""


def exact() -> Cross:
    """Evaluate every model on all train data of every client; of many clients, the models of a sample."""
    return lambda symmetric_in, clusterer, bounded: plain(by_losses(symmetric_in, bounded))


def sampled(
    first: int = Sampling.first,
    bound: float = Sampling.bound,
    draws: int = Sampling.draws,
    budget: float = Sampling.budget,
) -> Cross:
    """Evaluate every model on ``first`` examples of every client, and on more where errors could change a cluster.

    ``draws`` matrices with random errors of ``bound`` standard errors must all give the same clusters; ``budget``:
    beyond the first part, at most this share of all evaluations.
    """
    sampling = Sampling(first, bound, draws, budget)
    return lambda symmetric_in, clusterer, bounded: of_sampled_losses(symmetric_in, clusterer, sampling, bounded)


crosses = Catalogue("way to find cross losses", {"exact": exact, "sampled": sampled}, typed=True)
