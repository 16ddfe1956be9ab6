"""Methods in which the server clusters the clients' losses under all cluster models, before they train."""

from __future__ import annotations

from coterie.algorithms.method import always, finds_number, method
from coterie.protocol.task import Fit, Task
from coterie.server.aggregate import weighing
from coterie.server.assign import as_trained
from coterie.server.clustering.weighted_kmeans import WeightedKMeans
from coterie.server.contract import Algorithm
from coterie.server.loss_vectors import cluster_losses
from coterie.server.start import random_models


@method
@finds_number
def clove(clusters: int | str = 2, weights: str = "examples", fit: Fit = Fit()) -> Algorithm:
    """Cluster the clients' loss vectors by k-means every round, match clusters to models, and train the matched model.

    l_i = (L_i(T_1), ..., L_i(T_K)); groups g of k-means on the l_i; the matching M minimises sum_i l_i[M(g(i))], one
    model a group; c(i) = M(g(i)); T_k <- mean of its clients by examples. Bhatia et al., "CLoVE: personalized federated
    learning through clustering of loss vector embeddings", 2025. Where clients of ifca all choose the best of some
    random starts, groups still differ in how much worse the others are, so random starts suffice. Two exchanges a
    round: K models down to every client and K numbers up, then what fedavg costs. Fails if a round's clients lack a
    group: k-means then divides another, part of which trains the absent group's model; so it needs several clients of
    each group in every round. ``weights`` of the means: examples, or uniform.
    ``clusters=auto`` finds the number first (docs/choosing-clusters.md).
    """
    number = int(clusters)
    return Algorithm(
        start=random_models(number),
        prepare=cluster_losses(WeightedKMeans(number)),
        task=always(Task(fit=(fit,))),
        assign=as_trained(),
        weigh=weighing(weights),
        least_answers=number,
    )
