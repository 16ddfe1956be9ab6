"""Ensembles: several runs side by side, with clients that are served a mixture of all of them."""

from __future__ import annotations

from dataclasses import replace

from coterie.algorithms.method import method
from coterie.algorithms.one_model import fedavg, fedprox
from coterie.errors import UsageError, require
from coterie.limits import MEMBERS, check_most
from coterie.models.layout import MIXES
from coterie.protocol.task import Fit
from coterie.server.contract import Algorithm, Serving


@method
def fedavg_ensemble(members: int = 5, by: str = "softmax", fit: Fit = Fit()) -> Algorithm:
    """Run FedAvg several times independently, and serve clients the mean of the softmax outputs.

    p(y|x) = 1/M sum_j softmax(f(x; T_j)). Thesis table 7.1, FedAvg+. ``by=logits``: the sum of the members' logits;
    ``by=majority``: the class with the most votes. The first member is the run of this seed, further ones have seeds
    derived from it. Costs M times as much, and helps little: strong models make the same errors.
    """
    return ensemble(fedavg(fit=fit), members, by)


@method
def fedprox_ensemble(members: int = 5, strength: float = 0.95, by: str = "softmax", fit: Fit = Fit()) -> Algorithm:
    """Run FedProx several times independently, and serve clients the mean of the softmax outputs.

    Thesis table 7.1, FedProx+. See ``fedavg-ensemble`` and ``fedprox``.
    """
    return ensemble(fedprox(strength, fit), members, by)


def ensemble(algorithm: Algorithm, members: int, by: str = "softmax") -> Algorithm:
    """Run an algorithm ``members`` times from different seeds; mix outputs as softmaxes, logits or votes."""
    require(by in MIXES, "by", repr(by), " or ".join(MIXES))
    require(members >= 1, "members", members, "at least 1")
    check_most("members", members, MEMBERS)
    others = tuple(replace(algorithm, repeat=number) for number in range(1, members))
    return replace(
        algorithm, members=others, serve=replace(algorithm.serve, mix=by), name=f"ensemble({algorithm.name},{members})"
    )


def soft_vote(*members: Algorithm, by: str = "logits") -> Algorithm:
    """Run different algorithms from one seed and sum their logits (thesis eq. 7.36); clusters are those of the last.

    ``by``: as in ``ensemble``.
    """
    require(by in MIXES, "by", repr(by), " or ".join(MIXES))
    for member in members:
        if member.members or member.serve != Serving():
            raise UsageError(f"{member.name} cannot vote: it is an ensemble, or does something before it is tested")
    if len({member.network for member in members}) > 1:
        raise UsageError("voters must share one network; write 'vote(fedavg,ifca)+cam' in place of a vote with cam")
    *others, last = members
    name = f"vote({','.join(member.name for member in members)})"
    return replace(last, members=tuple(others), serve=Serving(mix=by), name=name)
