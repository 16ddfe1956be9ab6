"""Methods in which the server clusters the clients' parameters after every local update."""

from __future__ import annotations

from coterie.algorithms.auto import counted
from coterie.algorithms.method import always, method
from coterie.protocol.task import Fit, Task
from coterie.server.aggregate import by_examples, uniform
from coterie.server.assign import Weigh, cluster_parts, join_nearest, until
from coterie.server.clusterers import KMeansClusters
from coterie.server.loop import Algorithm
from coterie.server.place import nearest_centre
from coterie.server.start import one_model


@method
def fesem(clusters: int | str = 2, layer: str = "head_weight", shots: int | None = None, fit: Fit = Fit()) -> Algorithm:
    """Cluster the clients' parameters by k-means after every local update; every client counts the same.

    min sum_i |w_i - T_c(i)|^2. Xie et al., "Multi-center federated learning", 2021 (thesis eq. 3.2). See ``wecfl``.
    """
    return _parameter_clustering(clusters, layer, shots, fit, uniform)


@method
def wecfl(clusters: int | str = 2, layer: str = "head_weight", shots: int | None = None, fit: Fit = Fit()) -> Algorithm:
    """Cluster the clients' parameters by k-means weighted by examples; average whole models in each cluster.

    min sum_i n_i |w_i - T_c(i)|^2. Thesis algorithm 1, eq. 3.3-3.4. All clients start from one shared model: from
    different starts k-means finds the starts for ever, not the data. ``layer`` is the part that is clustered
    (head_weight, linear, all); after ``shots`` rounds the clusters are frozen (the add-on chapters use 10).
    ``clusters=auto`` finds the number first (docs/choosing-clusters.md).
    """
    return _parameter_clustering(clusters, layer, shots, fit, by_examples)


def _parameter_clustering(clusters: int | str, layer: str, shots: int | None, fit: Fit, weigh: Weigh) -> Algorithm:
    def make(number: int) -> Algorithm:
        assign = until(shots, cluster_parts(layer, KMeansClusters(number), weigh), join_nearest(layer))
        place = nearest_centre(layer, fit)
        return Algorithm(start=one_model(), task=always(Task(fit=(fit,))), assign=assign, place=place)

    return counted(clusters, fit, make)
