"""Methods in which the server clusters the clients once, after a warm-up with one model."""

from __future__ import annotations

from dataclasses import replace

from coterie.algorithms.method import always, method
from coterie.errors import UsageError, require
from coterie.protocol.task import Fit, Task
from coterie.server.aggregate import optimiser_named
from coterie.server.clustering.clusterers import Clusterer, agglomerative, clusterers
from coterie.server.contract import Algorithm, Place, Update, by_examples, replace_models
from coterie.server.distances.losses import crosses
from coterie.server.distances.measures import by_parameters, by_updates
from coterie.server.distances.separation import certain_differences
from coterie.server.distances.vectors import KeyedMeasure, plain
from coterie.server.one_shot import Rule, after, cluster_once, once
from coterie.server.placement import join, least_loss_when_formed, nearest_update
from coterie.server.start import judged_by, one_model_for


@method
def lcfl(
    clusters: int | str = 2,
    clusterer: str | Clusterer = "kmedoids",
    warmup: int = 1,
    start: str = "mean",
    losses: str = "data",
    cross: str = "exact",
    server: str | None = None,
    server_lr: float = 0.01,
    loss: str | None = None,
    iterations: int | None = None,
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster the clients once by their losses under each other's models, after a warm-up with one model.

    d(i, j) = |L_i(w_i) - L_i(w_j)| + |L_j(w_i) - L_j(w_j)| on train data, of which i sends the first term and j the
    second. Gu et al., "Novel clustered federated learning based on local loss", eq. 2; ``losses=models`` is eq. 6, for
    which they send losses. After ``warmup`` rounds of FedAvg all clients train and are sent each other's models, and
    any ``clusterer`` of the catalogue clusters the matrix (``clusters=auto`` finds the number).
    ``loss``: the training loss, or zero-one (wrong or not), or clipped to [0, 1], which no single example can dominate.
    ``cross=sampled``: each L_i is the mean over few examples, over more only where an error could change a cluster.
    ``iterations``: compare models after this number of steps, apart from the training of the round.
    ``server`` and ``server_lr``: FedOpt in the clusters. Costs m models down to every client, once; fails if untrained.
    """
    by = clusterers.build(clusterer, clusters=clusters)
    measure = crosses.build(cross)(losses, by, loss)
    compared = None if iterations is None else steps_of(iterations, fit)
    made = _once(
        measure,
        by,
        fit,
        warmup=warmup,
        start=start,
        place=least_loss_when_formed,
        update=optimiser_named(server, server_lr),
        compared=compared,
    )
    opinion = None if loss is None else certain_differences(loss, compared or fit)
    return replace(made, start=judged_by(loss, made.start), opinion=opinion)


@method
def diffnorm(
    clusters: int | str = 2,
    clusterer: str | Clusterer = "kmedoids",
    warmup: int = 1,
    start: str = "mean",
    server: str | None = None,
    server_lr: float = 0.01,
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster like lcfl, by the distances of the clients' parameters: |w_i - w_j|.

    Two models with different parameters may be the same function (a constant added to all classes of a softmax layer),
    which counts as a difference here. The baseline "DiffNorm" of Gu et al.
    """
    by = clusterers.build(clusterer, clusters=clusters)
    measure, update = plain(by_parameters("euclidean")), optimiser_named(server, server_lr)
    return _once(measure, by, fit, warmup=warmup, start=start, place=least_loss_when_formed, update=update)


@method
def gradcos(
    clusters: int | str = 2,
    clusterer: str | Clusterer = "kmedoids",
    warmup: int = 1,
    start: str = "mean",
    server: str | None = None,
    server_lr: float = 0.01,
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster like lcfl, by the cosine distances of the clients' updates: 1 - cos(u_i, u_j), u_i = w_i - T.

    The baseline "Gradcos" of Gu et al. Small updates are mostly noise, and noise has no direction.
    """
    by = clusterers.build(clusterer, clusters=clusters)
    measure, update = plain(by_updates("cosine")), optimiser_named(server, server_lr)
    return _once(measure, by, fit, warmup=warmup, start=start, place=nearest_update(fit), update=update)


@method
def briggs(
    cut: float | None = None,
    metric: str = "cosine",
    linkage: str = "average",
    warmup: int = 1,
    most: int = 10,
    fit: Fit = Fit(),
) -> Algorithm:
    """Merge clients with similar updates once, after ``warmup`` rounds; then run FedAvg in each cluster.

    Clusters are merged as long as they are within ``cut``: of the cosine distances (0 to 2), or euclidean, manhattan.
    Without a cut, until 1 to ``most`` are left, the number of the highest silhouette. ``linkage``: average, complete,
    single, ward (euclidean only). Briggs et al., "Federated learning with hierarchical clustering of local updates",
    2020, need a cut; it decides everything, and euclidean ones depend on rate and steps.
    """
    if linkage == "ward" and metric != "euclidean":
        raise UsageError(f"metric is {metric}; linkage=ward needs metric=euclidean")
    by = agglomerative(cut=cut, linkage=linkage, most=most)
    return _once(plain(by_updates(metric)), by, fit, warmup=warmup, place=nearest_update(fit))


def steps_of(iterations: int, fit: Fit) -> Fit | None:
    """Return the same local training with this number of steps; None if it has that number already.

    >>> steps_of(10, Fit()), steps_of(3, Fit(epochs=1)) == Fit(steps=3)
    (None, True)
    """
    require(iterations >= 1, "iterations", iterations, "at least 1")
    same = fit.epochs is None and fit.minibatches(0) == iterations
    return None if same else replace(fit, steps=iterations, epochs=None)


def _once(
    measure: KeyedMeasure,
    clusterer: Clusterer,
    fit: Fit,
    *,
    warmup: int,
    place: Place,
    start: str = "mean",
    update: Update = replace_models,
    compared: Fit | None = None,
) -> Algorithm:
    """Train one model for ``warmup`` rounds, cluster by a measure, and train a model for each cluster."""
    rule = cluster_once(measure, clusterer, by_examples, fit, start=start, compared=compared)
    return replace(clustered_after(warmup, rule, clusterer, fit, place), update=update)


def clustered_after(warmup: int, rule: Rule, clusterer: Clusterer, fit: Fit, place: Place) -> Algorithm:
    """Train one model for ``warmup`` rounds, apply a rule once, and train a model for each cluster."""
    return Algorithm(
        start=one_model_for(clusterer.least_points),
        task=always(Task(fit=(fit,))),
        assign=once(after(warmup), rule, join(place)),
        place=place,
        least_rounds=warmup + 1,
    )
