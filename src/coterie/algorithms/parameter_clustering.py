"""Methods in which the server clusters the clients' parameters after every local update."""

from __future__ import annotations

from coterie.algorithms.auto import counted
from coterie.algorithms.method import always, method
from coterie.protocol.task import Fit, Task
from coterie.server.aggregate import uniform, weighing
from coterie.server.assign import cluster_parts, join_nearest, until
from coterie.server.clustering.kmeans import KMeansClusters
from coterie.server.contract import Algorithm, Weigh, by_examples
from coterie.server.placement import nearest_centre
from coterie.server.start import one_model_for


@method
def fesem(
    clusters: int | str = 2,
    layer: str = "head_weight",
    shots: int | None = None,
    weights: str = "examples",
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster the clients' parameters by k-means after every local update; every client counts the same.

    min sum_i |w_i - T_c(i)|^2. Xie et al., "Multi-center federated learning", 2021 (thesis eq. 3.2). ``weights`` are
    those of the means inside clusters: examples, or uniform. See ``wecfl``.
    """
    return _parameter_clustering(clusters, layer, shots, uniform, weights, fit)


@method
def wecfl(
    clusters: int | str = 2,
    layer: str = "head_weight",
    shots: int | None = None,
    weights: str = "examples",
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster the clients' parameters by k-means weighted by examples; average whole models in each cluster.

    min sum_i n_i |w_i - T_c(i)|^2. Thesis algorithm 1, eq. 3.3-3.4. All clients start from one shared model: from
    different starts k-means finds the starts for ever, not the data. ``layer`` is the part that is clustered
    (head_weight, linear, all); after ``shots`` clusterings the clusters are frozen (the add-on chapters use 10).
    ``weights`` of the means inside clusters: examples, or uniform; k-means has its own. ``clusters=auto`` finds the
    number first (docs/choosing-clusters.md).
    """
    return _parameter_clustering(clusters, layer, shots, by_examples, weights, fit)


def _parameter_clustering(
    clusters: int | str, layer: str, shots: int | None, by: Weigh, weights: str, fit: Fit
) -> Algorithm:
    weigh = weighing(weights)

    def make(number: int) -> Algorithm:
        return Algorithm(
            start=one_model_for(number),
            task=always(Task(fit=(fit,))),
            assign=until(shots, cluster_parts(layer, KMeansClusters(number), by), join_nearest(layer)),
            weigh=weigh,
            place=nearest_centre(layer, fit),
            least_rounds=shots or 1,
            least_answers=number,
        )

    return counted(clusters, fit, make)
