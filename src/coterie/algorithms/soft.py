"""Methods in which a client has a share of every cluster."""

from __future__ import annotations

from dataclasses import replace

from coterie.algorithms.method import always, finds_number, method
from coterie.errors import require
from coterie.protocol.task import Fit, Proximal, Task
from coterie.server.assign import as_trained
from coterie.server.contract import Algorithm, Serving
from coterie.server.soft import by_description, equal_memberships, estimate_memberships
from coterie.server.start import farthest_first, random_models, warn_if_equal


@method
@finds_number
def fedsoft(
    clusters: int | str = 2,
    strength: float = 0.1,
    interval: int = 2,
    smoothing: float = 1e-4,
    start: str = "farthest",
    fit: Fit = Fit(),
) -> Algorithm:
    """Take each client's data as a mixture of sources, and train its mixture of the sources' models.

    u_ik = share of client i's examples with the least loss under T_k, at least ``smoothing``, sum 1, estimated every
    ``interval`` rounds; local objective loss(w) + strength/2 sum_k u_ik |w - T_k|^2; T_k <- sum_i u_ik n_i w_i /
    sum_i u_ik n_i. Ruan and Joe-Wong, "FedSoft: soft clustered federated learning with proximal local updating", 2022.
    As sum_k u_ik = 1, the penalty is strength/2 |w - sum_k u_ik T_k|^2 plus a number without w: fedprox from the
    client's mixture, which alone is sent to it. Clients are served this mixture after one local training, the solution
    of the local problem; labels name the largest u. Fails where models are alike: then counts are noise, and means by
    them make the models more alike, so starts are farthest-first (the paper's: ``start=random``); and where few clients
    of a source answer: others with a small share then move its model. Costs K models down in rounds that estimate.
    ``clusters=auto`` finds the number first (docs/choosing-clusters.md).
    """
    require(start in ("farthest", "random"), "start", repr(start), "farthest or random")
    require(0 <= smoothing < 1, "smoothing", smoothing, "in [0, 1)")
    number, near = int(clusters), replace(fit, terms=(*fit.terms, Proximal(strength)))
    shares = f"coterie.client_functions:shares_of_least_loss(smoothing={smoothing:g})"
    first = warn_if_equal(random_models(number) if start == "random" else farthest_first(number, fit))
    return Algorithm(
        start=equal_memberships(first),
        prepare=estimate_memberships(shares, interval),
        task=always(Task(fit=(near,))),
        assign=as_trained(),
        place=by_description(shares),
        serve=Serving(fit=(near,)),
    )
