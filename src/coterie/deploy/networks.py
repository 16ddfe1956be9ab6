"""The networks that a server may name, built at a site only once it is known what they will take."""

from __future__ import annotations

from collections import OrderedDict

from coterie.data.federated import Federated
from coterie.deploy.policy import Policy
from coterie.engine.engine import Engine
from coterie.errors import FederationError
from coterie.models.zoo import count_numbers
from coterie.textforms import Call, parse_one
from coterie.wire.requests import Network

KEPT = 2
"""Engines that are kept: the model of the run that goes on, and one more."""

LARGEST_ARGUMENT = 8192
LONGEST_NAME = 200


class Networks:
    """Engines on a site's data, by the network they train; the last few are kept."""

    def __init__(self, data: Federated, policy: Policy, threads: int = 1) -> None:
        self.data, self.policy, self.threads = data, policy, threads
        self._engines: OrderedDict[Network, Engine] = OrderedDict()

    def engine(self, network: Network, params: int, buffers: int) -> Engine:
        """The engine of a network whose rows have so many parameters and buffers, as the message says."""
        if network not in self._engines:
            self._check(network, params, buffers)
            while len(self._engines) >= KEPT:
                self._engines.popitem(last=False)
            self._engines[network] = Engine(network.build(), self.data, threads=self.threads, plan="workers")
        self._engines.move_to_end(network)
        engine = self._engines[network]
        _check_numbers(network, (engine.model.layout.size, engine.model.layout.buffer_size), (params, buffers))
        return engine

    def _check(self, network: Network, params: int, buffers: int) -> None:
        own = self.data
        if len(network.text) > LONGEST_NAME:
            raise FederationError(f"the model's text has {len(network.text)} letters; at most {LONGEST_NAME} are read")
        self.policy.check_model(network.text)
        if network.half not in ("", "cluster"):
            raise FederationError(f"the half of the model is {network.half!r}; it must be 'cluster' or empty")
        if network.shape != own.shape:
            raise FederationError(f"the model is for examples of shape {network.shape}; this site has {own.shape}")
        if (network.classes is None) != (own.classes is None):
            kinds = "a regression", "a classification"
            raise FederationError(
                f"the model is for {kinds[network.classes is not None]}; this site has {kinds[own.classes is not None]}"
            )
        if network.classes is not None and not (own.classes or 0) <= network.classes <= params:
            raise FederationError(
                f"the model has {network.classes} classes and {params} parameters; this site has {own.classes} classes"
            )
        call = parse_one(network.text)
        if ":" not in call.name:
            _check_arguments(call)
            _check_numbers(network, _count(call, network), (params, buffers))


def _check_arguments(call: Call) -> None:
    for value in (*call.args, *(value for _, value in call.kwargs)):
        if isinstance(value, int | float) and abs(value) > LARGEST_ARGUMENT:
            raise FederationError(f"the model {str(call)[:60]!r} has an argument above {LARGEST_ARGUMENT}")


def _count(call: Call, network: Network) -> tuple[int, int]:
    """The parameters and buffers that a network of the catalogue will have, of both halves where it has two."""
    params, buffers = count_numbers(call, network.shape, 1 if network.classes is None else network.classes)
    halves = 2 if network.half else 1
    return halves * params, halves * buffers


def _check_numbers(network: Network, wanted: tuple[int, int], sent: tuple[int, int]) -> None:
    if wanted != sent:
        raise FederationError(
            f"the model {network.text!r} has {wanted[0]} parameters and {wanted[1]} buffers; the message has rows of "
            f"{sent[0]} and {sent[1]}; do the versions match?"
        )
