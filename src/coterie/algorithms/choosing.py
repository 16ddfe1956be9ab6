"""Methods in which every client chooses its cluster among all cluster models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coterie.algorithms.method import always, finds_number, method
from coterie.errors import require
from coterie.protocol.stack import Stack
from coterie.protocol.task import Agreement, BatchLoss, Fit, Loss, Race, Score, Task
from coterie.server.aggregate import uniform, weighing
from coterie.server.assign import as_trained
from coterie.server.contract import Algorithm, Serving, State, previous_models
from coterie.server.start import farthest_first, random_labels, random_models, warn_if_equal

CHOICES: dict[str, Callable[..., Score]] = {"exact": Loss, "race": Race}
"""How clients choose, by the name of the setting."""


@method
@finds_number
def ifca(
    clusters: int | str = 2,
    start: str = "farthest",
    fresh: bool = False,
    examples: int | None = None,
    choose: str = "exact",
    weights: str = "examples",
    fit: Fit = Fit(),
) -> Algorithm:
    """Let each client choose, among all cluster models, the one of least loss on its train data, and train it.

    c(i) = argmin_k L_i(T_k); T_k <- mean of its clients by examples. Ghosh et al., "An efficient framework for
    clustered federated learning", 2020; HypCluster of Mansour et al., 2020. Identical starts collapse into FedAvg, and
    random ones (``start=random``, the paper's) may merge two groups, so the default is farthest-first. ``fresh`` lets a
    client choose again before it is tested; ``examples``: on how many it chooses (none: all); ``weights`` of the means:
    examples, or uniform; ``choose=race`` leaves out early the models that are clearly worse. Costs K models down to
    every client every round.
    ``clusters=auto`` finds the number first (docs/choosing-clusters.md).
    """
    require(start in ("farthest", "random"), "start", repr(start), "farthest or random")
    require(choose in CHOICES, "choose", repr(choose), "exact or race")
    scores, number = (CHOICES[choose](examples=examples),), int(clusters)
    return Algorithm(
        start=warn_if_equal(random_models(number) if start == "random" else farthest_first(number, fit)),
        task=always(Task(choose=scores, fit=(fit,))),
        assign=as_trained(),
        weigh=weighing(weights),
        serve=Serving(choose=scores) if fresh else Serving(),
        chooses=True,
    )


@method
@finds_number
def joint(
    clusters: int | str = 2,
    strength: float = 0.2,
    similarity: str = "cosine",
    total: bool = False,
    pinned: bool = False,
    sign: str = "descent",
    fit: Fit = Fit(),
) -> Algorithm:
    """Let each client choose a model of low loss with a last movement that agrees with its gradient, and take one step.

    c(i) = argmax_k strength * S_ik - (1 - strength) * L_i(T_k) on one minibatch, which then makes the single step, S
    the cosine of minus the gradient with T_k(t) - T_k(t-1); T_k <- plain mean. Lin et al., "A joint gradient and loss
    based clustered federated learning design"; their printed sign (``sign=printed``, for the record) scores a matching
    client near -1.
    ``similarity=euclidean``: S = -|-lr gradient - movement|; ``total``: the loss is a sum, as printed, and drowns S.
    The first clusters are random; ``pinned`` keeps a random client in each cluster, as clusters may become empty.
    One step a round, whatever the local training: slow. Costs 2 K models down to every client.
    """
    require(0 <= strength <= 1, "strength", strength, "in [0, 1]")
    require(similarity in ("cosine", "euclidean"), "similarity", repr(similarity), "cosine or euclidean")
    require(sign in ("descent", "printed"), "sign", repr(sign), "descent or printed")
    scores = (Agreement(strength, similarity == "euclidean", sign == "printed"), BatchLoss(1 - strength, total))
    used, one_step = tuple(score for score in scores if score.weight), replace(fit, steps=1, epochs=None)
    number = int(clusters)
    return Algorithm(
        start=random_labels(warn_if_equal(random_models(number)), number, pinned),
        task=look_ahead(used, one_step),
        assign=as_trained(),
        weigh=uniform,
        references=movement_of(used),
        chooses=True,
        fit=one_step,
    )


def look_ahead(scores: tuple[Score, ...], fit: Fit) -> Callable[[State], Task]:
    """Train the cluster's model in round 0; from then on choose by these scores first, except pinned clients."""

    def task(state: State) -> Task:
        if state.round == 0:
            return Task(fit=(fit,))
        return Task(choose=scores, fit=(fit,), pinned=tuple(state.memory.rows.items()))

    return task


def movement_of(scores: tuple[Score, ...]) -> Callable[[State], Stack | None]:
    """Send the models of the round before, from round 1 on, if a score reads how the models have moved."""
    moving = any(isinstance(score, Agreement) for score in scores)
    return lambda state: previous_models(state) if moving and state.round > 0 else None
