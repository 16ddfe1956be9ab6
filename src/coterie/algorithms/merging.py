"""Methods in which every client begins as a cluster of its own, and clusters merge."""

from __future__ import annotations

from dataclasses import replace

from coterie.algorithms.method import always, method
from coterie.errors import require
from coterie.protocol.task import Fit, Near, Task
from coterie.server.aggregate import weighing
from coterie.server.contract import Algorithm, no_references
from coterie.server.merging import merge_similar, model_of_everyone, nobody_seen, train_for_everyone, updates_of_anchor
from coterie.server.placement import nearest_update


@method
def stocfl(threshold: float = 0.5, strength: float = 0.05, weights: str = "examples", fit: Fit = Fit()) -> Algorithm:
    """Merge clusters of clients whose updates of one fixed model are similar, beside a model that all clients train.

    u_i = update of the anchor, once a client; clusters a, b merge while cos(mean u_a, mean u_b) >= threshold, the most
    similar first. Local objective of cluster model T_k: loss(w) + strength/2 |w - G|^2; G <- mean of all clients'
    trainings of G. Zeng et al., "Stochastic clustered federated learning", 2023. For any participation: clients come in
    when first asked, from G; the number of clusters is found. The server keeps a sum of updates for each cluster, no
    client's own. Costs two models to and fro every round, and one more once. Clusters never split, so a threshold that
    is too low is final; one too high leaves many small clusters. ``strength=0``: cluster models alone; ``weights`` of
    the means: examples, or uniform.
    """
    require(-1 <= threshold <= 1, "threshold", threshold, "in [-1, 1]")
    terms, weigh = (Near(strength),), weighing(weights)
    near = replace(fit, terms=(*fit.terms, *terms)) if strength else fit
    return Algorithm(
        start=nobody_seen(),
        prepare=merge_similar(threshold, fit),
        task=always(Task(fit=(near,))),
        assign=train_for_everyone(fit, weigh),
        weigh=weigh,
        references=model_of_everyone if strength else no_references,
        place=nearest_update(fit, updates_of_anchor),
    )
