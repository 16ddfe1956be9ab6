"""The catalogue: one short function per published method, each a composition of the server's parts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from coterie.catalogue import Catalogue, Value, parse_one, text_of
from coterie.errors import UsageError
from coterie.protocol.task import Fit, Loss, Proximal, Task
from coterie.server.aggregate import by_examples, uniform
from coterie.server.assign import Weigh, cluster_parts, join_nearest, keep, until
from coterie.server.clusterers import KMeansClusters
from coterie.server.loop import Algorithm
from coterie.server.start import farthest_first, model_per_client, one_model, random_models
from coterie.server.state import State
from coterie.server.update import server_optimiser

Compose = TypeVar("Compose", bound=Callable[..., Algorithm])


def method(compose: Compose) -> Compose:
    """Let an algorithm carry, for the record, the text of the call that made it and the local training it was given."""

    @functools.wraps(compose)
    def build(*args: Any, **kwargs: Any) -> Algorithm:
        bound = inspect.signature(compose).bind(*args, **kwargs)
        text = text_of(bound, compose.__name__, leave_out=("fit",), keep=("clusters",))
        return replace(compose(*args, **kwargs), name=text, fit=bound.arguments.get("fit", Fit()))

    return cast(Compose, build)


def always(task: Task) -> Callable[[State], Task]:
    """The same task in every round."""
    return lambda state: task


@method
def local(fit: Fit = Fit()) -> Algorithm:
    """Every client trains alone: the floor that federation has to beat, and the ceiling of privacy."""
    return Algorithm(start=model_per_client(), task=always(Task(fit=(fit,))), assign=keep())


@method
def fedavg(fit: Fit = Fit()) -> Algorithm:
    """One model for all: clients train it, the server averages by examples.

    T <- sum_i (n_i / n) w_i. McMahan et al., "Communication-efficient learning of deep networks from decentralized
    data", 2017. Fails when clients disagree: the mean of two good models can be good for nobody.
    """
    return Algorithm(start=one_model(), task=always(Task(fit=(fit,))), assign=keep())


@method
def fedprox(strength: float = 0.95, fit: Fit = Fit()) -> Algorithm:
    """FedAvg with a proximal term that keeps clients near the model they received.

    Local objective: loss(w) + strength/2 |w - T|^2. Li et al., "Federated optimization in heterogeneous networks",
    2020; the thesis uses 0.95. ``strength=0`` is fedavg. The term's gradient is added in closed form: in some public
    code it is built from detached tensors and does nothing.
    """
    return fedavg(replace(fit, terms=(*fit.terms, Proximal(strength))))


@method
def fedopt(
    server: str = "adam",
    lr: float = 0.01,
    momentum: float = 0.0,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
    fit: Fit = Fit(),
) -> Algorithm:
    """FedAvg with a server optimiser (sgd, adam, yogi, adagrad) on the mean update.

    d = mean_i w_i - T is treated as a descent direction. Reddi et al., "Adaptive federated optimization", 2021.
    ``fedopt(server=sgd,lr=1)`` is fedavg.
    """
    return replace(fedavg(fit), update=server_optimiser(server, lr, momentum, beta1, beta2, tau))


@method
def ifca(
    clusters: int = 2,
    start: str = "farthest",
    fresh: bool = False,
    examples: int | None = None,
    fit: Fit = Fit(),
) -> Algorithm:
    """Each client picks, among all cluster models, the one of least loss on its train data, and trains that.

    c(i) = argmin_k L_i(T_k); T_k <- mean of its clients by examples. Ghosh et al., "An efficient framework for
    clustered federated learning", 2020; HypCluster of Mansour et al., 2020. Identical starts collapse into FedAvg, and
    random ones (``start=random``, the paper's) may merge two groups, so the default is farthest-first. ``fresh`` lets a
    client choose again before it is tested; ``examples`` lets it choose on its first so many.
    Costs K models down to every client in every round.
    """
    starts = {"farthest": farthest_first(clusters, fit), "random": random_models(clusters)}
    if start not in starts:
        raise UsageError(f"start is {start!r}; it must be farthest or random")
    choose = (Loss(examples=examples),)
    return Algorithm(
        start=starts[start],
        task=always(Task(choose=choose, fit=(fit,))),
        assign=keep(),
        serve=Task(choose=choose) if fresh else Task(),
    )


@method
def fesem(clusters: int = 2, layer: str = "head_weight", shots: int | None = None, fit: Fit = Fit()) -> Algorithm:
    """Cluster the clients' parameters by k-means after every local update; every client counts the same.

    min sum_i |w_i - T_c(i)|^2. Xie et al., "Multi-center federated learning", 2021 (thesis eq. 3.2). See ``wecfl``.
    """
    return _parameter_clustering(clusters, layer, shots, fit, uniform)


@method
def wecfl(clusters: int = 2, layer: str = "head_weight", shots: int | None = None, fit: Fit = Fit()) -> Algorithm:
    """Cluster the clients' parameters by k-means weighted by examples; average whole models in each cluster.

    min sum_i n_i |w_i - T_c(i)|^2. Thesis algorithm 1, eq. 3.3-3.4. All clients start from one shared model: from
    different starts k-means finds the starts for ever, not the data. ``layer`` is the part that is clustered
    (head_weight, linear, all); after ``shots`` rounds the clusters are frozen (the add-on chapters use 10).
    """
    return _parameter_clustering(clusters, layer, shots, fit, by_examples)


def _parameter_clustering(clusters: int, layer: str, shots: int | None, fit: Fit, weigh: Weigh) -> Algorithm:
    assign = until(shots, cluster_parts(layer, KMeansClusters(clusters), weigh), join_nearest(layer))
    return Algorithm(start=one_model(), task=always(Task(fit=(fit,))), assign=assign)


algorithms = Catalogue(
    "algorithm",
    {
        "local": local,
        "fedavg": fedavg,
        "fedprox": fedprox,
        "fedopt": fedopt,
        "ifca": ifca,
        "fesem": fesem,
        "wecfl": wecfl,
    },
    hidden=("fit",),
    typed=True,
)

REDUCES_TO = {
    "fedprox(strength=0)": "fedavg",
    "fedopt(server=sgd,lr=1)": "fedavg",
    "ifca(clusters=1)": "fedavg",
    "ifca(clusters=1,start=random)": "fedavg",
    "fesem(clusters=1)": "fedavg",
    "wecfl(clusters=1)": "fedavg",
    "wecfl(clusters=1,shots=2)": "fedavg",
}
"""What each method is the same as when there is nothing to cluster; the contract tests hold them to it."""


RANGES: dict[str, dict[str, tuple[Value, ...]]] = {
    # The rates of the four papers (thesis 0.001, ocfl 0.01, lcfl 0.02 and 0.03) and our default for dense nets.
    "": {"lr": (0.001, 0.01, 0.02, 0.03, 0.1)},
    # Li et al. 2020, section 5.3; the thesis uses 0.95.
    "fedprox": {"strength": (0.001, 0.01, 0.1, 0.95)},
    # Reddi et al. 2021, appendix D: powers of ten.
    "fedopt": {"fedopt.lr": (0.001, 0.01, 0.1, 1), "tau": (1e-4, 1e-3, 1e-2)},
}
"""Published values to search, by algorithm, and for all of them under the empty name."""


def build_algorithm(text: str, clusters: int | None = None, fit: Fit = Fit()) -> Algorithm:
    """The algorithm a text names; ``clusters`` and ``fit`` apply unless the text says otherwise.

    >>> build_algorithm("wecfl(shots=10)", clusters=4).name
    'wecfl(shots=10)'
    """
    given = {"fit": fit} if clusters is None else {"fit": fit, "clusters": clusters}
    call = parse_one(text)
    algorithm: Algorithm = algorithms.build(call, **given)
    return replace(algorithm, name=str(call))
