"""Methods with one model for all clients, or one for each: the baselines of clustering."""

from __future__ import annotations

from dataclasses import replace

from coterie.algorithms.method import always, method
from coterie.protocol.task import Fit, Proximal, Task
from coterie.server.aggregate import server_optimiser, weighing
from coterie.server.assign import as_trained
from coterie.server.contract import Algorithm
from coterie.server.start import model_per_client, one_model


@method
def local(fit: Fit = Fit()) -> Algorithm:
    """Train every client alone: the baseline that federation has to beat, and the most private method."""
    return Algorithm(start=model_per_client(), task=always(Task(fit=(fit,))), assign=as_trained())


@method
def fedavg(fit: Fit = Fit(), *, weights: str = "examples") -> Algorithm:
    """Train one model for all: clients train it, the server averages by examples.

    T <- sum_i (n_i / n) w_i; ``weights=uniform``: T <- 1/m sum_i w_i. McMahan et al., "Communication-efficient
    learning of deep networks from decentralized data", 2017. Fails when clients disagree: the mean of two good models
    can be good for no client.
    """
    return Algorithm(start=one_model(), task=always(Task(fit=(fit,))), assign=as_trained(), weigh=weighing(weights))


@method
def fedprox(strength: float = 0.95, fit: Fit = Fit()) -> Algorithm:
    """Add to FedAvg a proximal term that keeps clients near the model they received.

    Local objective: loss(w) + strength/2 |w - T|^2. Li et al., "Federated optimization in heterogeneous networks",
    2020; the thesis uses 0.95. ``strength=0`` is fedavg. The term's gradient is added in closed form, so that it cannot
    be lost: the thesis' public code, since May 2023, builds it from detached tensors.
    """
    return replace(fedavg(fit=replace(fit, terms=(*fit.terms, Proximal(strength)))), fit=fit)


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
    """Apply a server optimiser (sgd, adam, yogi, adagrad) to the mean update of FedAvg.

    d = mean_i w_i - T is treated as a descent direction. Reddi et al., "Adaptive federated optimization", 2021.
    ``fedopt(server=sgd,lr=1)`` is fedavg.
    """
    return replace(fedavg(fit=fit), update=server_optimiser(server, lr, momentum, beta1, beta2, tau))
