"""How the averaged models become the next ones: plain replacement, or a server optimiser (FedOpt)."""

from __future__ import annotations

import numpy as np

from coterie.errors import UnknownName, require
from coterie.limits import LARGEST, check_most
from coterie.models.layout import Array
from coterie.protocol.stack import Stack
from coterie.server.contract import Moments, Update, replace_models

SERVERS = ("sgd", "adam", "yogi", "adagrad")


def server_optimiser(server: str, lr: float, momentum: float, beta1: float, beta2: float, tau: float) -> Update:
    """Treat ``mean - model`` as a gradient (Reddi et al. 2021); without bias correction, second moment from tau^2.

    sgd: m = momentum m + d, x += lr m. Others: m = beta1 m + (1 - beta1) d, x += lr m / (sqrt(v) + tau), with
    adagrad v += d^2; adam v = beta2 v + (1 - beta2) d^2; yogi v -= (1 - beta2) d^2 sign(v - d^2).
    """
    if server not in SERVERS:
        raise UnknownName("server optimiser", server, SERVERS)
    for name, value, good, limit in (
        ("lr", lr, lr > 0, "> 0"),
        ("tau", tau, tau > 0, "> 0"),
        ("momentum", momentum, 0 <= momentum < 1, "in [0, 1)"),
        ("beta1", beta1, 0 <= beta1 < 1, "in [0, 1)"),
        ("beta2", beta2, 0 <= beta2 < 1, "in [0, 1)"),
    ):
        require(good, f"the server's {name}", value, limit)
        check_most(f"the server's {name}", value, LARGEST)

    def update(models: Stack, mean: Stack, moments: Moments, answered: Array) -> tuple[Stack, Moments]:
        old = models.params.astype(np.float64)
        delta = mean.params - old
        first = moments.get("first", np.zeros_like(old))
        second = moments.get("second", np.full_like(old, tau**2))
        if server == "sgd":
            new_first, new_second = momentum * first + delta, second
            new = old + lr * new_first
        else:
            new_first = beta1 * first + (1 - beta1) * delta
            new_second = _second(server, second, delta**2, beta2)
            new = old + lr * new_first / (np.sqrt(new_second) + tau)
        rows = answered[:, None]
        params = np.where(rows, new, old).astype(models.params.dtype)
        kept = {"first": np.where(rows, new_first, first)}
        if server != "sgd":
            kept["second"] = np.where(rows, new_second, second)
        return Stack(params, mean.buffers), kept

    return update


def optimiser_named(server: str | None, lr: float) -> Update:
    """The server optimiser of a name, as Reddi et al. set it but for its rate; None: the mean is the new model."""
    return replace_models if server is None else server_optimiser(server, lr, 0.0, 0.9, 0.99, 1e-3)


def _second(server: str, second: Array, square: Array, beta2: float) -> Array:
    if server == "adagrad":
        return second + square
    if server == "adam":
        return beta2 * second + (1 - beta2) * square
    yogi: Array = second - (1 - beta2) * square * np.sign(second - square)
    return yogi
