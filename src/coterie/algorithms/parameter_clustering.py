"""Methods in which the server clusters the clients' parameters after every local update."""

from __future__ import annotations

from coterie.algorithms.method import always, finds_number, method
from coterie.protocol.task import Fit, Task
from coterie.server.aggregate import uniform, weighing
from coterie.server.assign import cluster_by_part, join_nearest, nearest_centre, until
from coterie.server.clustering.weighted_kmeans import WeightedKMeans
from coterie.server.contract import Algorithm, Weigh, by_examples
from coterie.server.start import one_model_for


@method
@finds_number
def fesem(
    clusters: int | str = 2,
    layer: str = "head_weight",
    shots: int | None = None,
    weights: str = "examples",
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster the clients' parameters by k-means in which all clients count equally, after every local update.

    min sum_i |w_i - T_c(i)|^2. Xie et al., "Multi-center federated learning", 2021 (thesis eq. 3.2). ``weights`` are
    those of the means inside clusters: examples, or uniform. See ``wecfl``.
    """
    return cluster_parameters(int(clusters), layer, shots, fit, in_kmeans=uniform, in_means=weighing(weights))


@method
@finds_number
def wecfl(
    clusters: int | str = 2,
    layer: str = "head_weight",
    shots: int | None = None,
    weights: str = "examples",
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster the clients' parameters by k-means weighted by examples; average whole models in each cluster.

    min sum_i n_i |w_i - T_c(i)|^2. Ma's thesis, algorithm 1, eq. 3.3-3.4. All clients start from one shared model: from
    different starts k-means would find the starts, not the data. ``layer`` is the part that is clustered (head_weight,
    linear, all); after ``shots`` clusterings the clusters are frozen (the add-on chapters use 10). ``weights`` of the
    means inside clusters: examples, or uniform; k-means always weighs by examples. ``clusters=auto`` finds the number
    first (docs/choosing-clusters.md).
    """
    return cluster_parameters(int(clusters), layer, shots, fit, in_kmeans=by_examples, in_means=weighing(weights))


def cluster_parameters(
    clusters: int, layer: str, shots: int | None, fit: Fit, *, in_kmeans: Weigh, in_means: Weigh
) -> Algorithm:
    """Start from one model, train, cluster a layer by k-means with some weights, and average with others."""
    return Algorithm(
        start=one_model_for(clusters),
        task=always(Task(fit=(fit,))),
        assign=until(shots, cluster_by_part(layer, WeightedKMeans(clusters), in_kmeans), join_nearest(layer)),
        weigh=in_means,
        place=nearest_centre(layer, fit),
        least_rounds=shots or 1,
        least_answers=clusters,
    )
