"""Methods that begin with one model and split it when its clients no longer agree."""

from __future__ import annotations

from coterie.algorithms.method import always, method
from coterie.errors import require
from coterie.protocol.task import Fit, Task
from coterie.server.aggregate import optimiser_named, weighing
from coterie.server.bipartition import Stationary, bipartition
from coterie.server.clustering.clusterers import Clusterer, affinity, clusterers, hdbscan, kmeans, meanshift
from coterie.server.contract import Algorithm, Update, least_loss, replace_models
from coterie.server.distances.measures import by_updates
from coterie.server.distances.vectors import plain
from coterie.server.one_shot import cluster_once, once, temperature_rises
from coterie.server.placement import join, nearest_update
from coterie.server.start import one_model, one_model_for


@method
def ocfl(
    clusterer: str | Clusterer = "hdbscan",
    clusters: int | str | None = None,
    shots: int = 1,
    p: float = 2.0,
    weights: str = "examples",
    server: str | None = None,
    server_lr: float = 0.01,
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster the updates once, by any clusterer, at the first rise of their temperature.

    T_t = |D|_p / (2^p n (n - 1))^(1/p) with D the cosine distances of the updates; at the first t >= 1 with
    T_t > T_(t-1) the models of that very round are averaged per cluster. Zuziak et al., "One-shot clustering for
    federated learning", who find that any clusterer will do: ``clusterer`` is one of the catalogue (``clusters``: how
    many, or auto, for those that take a number). ``shots`` is the number of rounds that cluster; ``weights``: examples,
    or uniform as in the paper; ``server`` and ``server_lr``: FedOpt, before and after. ocfl-hdbscan, ocfl-meanshift,
    ocfl-affinity and ocfl-kmeans are short forms. Fails if noise raises the temperature before the groups show.
    """
    require(not isinstance(clusters, int) or clusters >= 1, "clusters", clusters, "at least 1, auto or none")
    given = {} if clusters is None else {"clusters": clusters}
    update = optimiser_named(server, server_lr)
    return _ocfl(clusterers.build(clusterer, **given), shots, weights, fit, p=p, update=update)


@method
def ocfl_hdbscan(
    shots: int = 1, members: int | None = None, apart: bool = False, weights: str = "examples", fit: Fit = Fit()
) -> Algorithm:
    """Cluster the updates once, by HDBSCAN, at the first rise of their temperature.

    See ``ocfl``. ``members``: least size of a cluster (none: a fifth of the clients); noise joins the nearest cluster,
    or stays ``apart``; if all is noise there is no split.
    """
    return _ocfl(hdbscan(members, apart), shots, weights, fit)


@method
def ocfl_meanshift(
    shots: int = 1, weights: str = "examples", bandwidth: str | None = None, fit: Fit = Fit()
) -> Algorithm:
    """Cluster like ocfl-hdbscan, by mean shift on the rows of the distance matrix.

    ``bandwidth=sklearn`` takes scikit-learn's own estimate, as published; it often finds one cluster.
    """
    return _ocfl(meanshift(bandwidth=bandwidth), shots, weights, fit)


@method
def ocfl_affinity(shots: int = 1, damping: float = 0.5, weights: str = "examples", fit: Fit = Fit()) -> Algorithm:
    """Cluster like ocfl-hdbscan, by affinity propagation on similarities (the authors' code passes it distances)."""
    return _ocfl(affinity(damping), shots, weights, fit)


@method
def ocfl_kmeans(clusters: int | str = 2, shots: int = 1, weights: str = "examples", fit: Fit = Fit()) -> Algorithm:
    """Cluster like ocfl-hdbscan, by k-means on the rows of the distance matrix; ``clusters=auto`` finds the number."""
    return _ocfl(kmeans(clusters), shots, weights, fit)


def _ocfl(
    clusterer: Clusterer, shots: int, weights: str, fit: Fit, *, p: float = 2.0, update: Update = replace_models
) -> Algorithm:
    """Train one model until the temperature rises, cluster the updates, and train a model for each cluster."""
    weigh, place = weighing(weights), nearest_update(fit)
    rule = cluster_once(plain(by_updates("cosine")), clusterer, weigh, fit, all_clients=False)
    return Algorithm(
        start=one_model_for(clusterer.least_points),
        task=always(Task(fit=(fit,))),
        assign=once(temperature_rises(p), rule, join(place), shots),
        weigh=weigh,
        update=update,
        update_before=update,
        place=place,
        least_rounds=1 + shots,
        least_answers=max(2, clusterer.least_points),
    )


@method
def sattler(
    eps1: float = 0.35,
    eps2: float = 0.35,
    minimum: int = 20,
    relative: bool = True,
    linkage: str = "single",
    weights: str = "uniform",
    least: float | None = 0.2,
    fit: Fit = Fit(),
) -> Algorithm:
    """Split a cluster in two, again and again, when its model rests while its clients still move.

    Split if |mean_i u_i| < eps1 and max_i |u_i| > eps2 after ``minimum`` rounds, into the two sides with the least
    largest similarity across (single linkage of cosine distances; complete as in the public code). Sattler et al.,
    "Clustered federated learning", 2021: absolute eps1=0.4, eps2=1.6; ``relative=true`` measures them by the largest
    updates. Noise near the optimum meets these conditions on data without groups, so the silhouette of the sides must
    be above ``least`` (not in the papers; ``least=none`` leaves it out).
    """
    weigh = weighing(weights)
    rule = bipartition(
        Stationary(eps1, eps2, relative),
        minimum=minimum,
        linkage=linkage,
        weigh=weigh,
        fit=fit,
        place=least_loss,
        least=least,
    )
    task = always(Task(fit=(fit,)))
    return Algorithm(start=one_model(), task=task, assign=rule, weigh=weigh, least_rounds=minimum + 2)
