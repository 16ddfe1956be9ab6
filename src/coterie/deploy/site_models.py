"""The models that a server may name to a site: checked before they are built, each with the engine that trains it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from coterie.data.federated import Federated
from coterie.deploy.policy import Policy
from coterie.engine.engine import Engine
from coterie.errors import FederationError
from coterie.models.zoo import count_numbers
from coterie.target import Target
from coterie.terminal import line
from coterie.textforms import Call, parse_one
from coterie.wire.requests import Network

ENGINES_KEPT = 2
"""Engines that are kept: the model of the current run, and one more."""

LARGEST_ARGUMENT = 8192
LONGEST_MODEL = 200
"""The largest argument of a model, and the most letters of its text."""


class SiteModels:
    """The models that a server may name: checked before they are built, each with its engine; the last few are kept."""

    def __init__(self, data: Federated, policy: Policy, threads: int = 1) -> None:
        self.data, self.policy, self.threads = data, policy, threads
        self._engines: OrderedDict[Network, Engine] = OrderedDict()

    def engine(self, network: Network, params: int, buffers: int) -> Engine:
        """Return the engine of a network; refuse one with other numbers of parameters and buffers than the message.

        Its frozen part does not travel, so that the one built here must be the server's.
        """
        named = replace(network, frozen="")
        if named not in self._engines:
            self._check(network, params, buffers)
            while len(self._engines) >= ENGINES_KEPT:
                self._engines.popitem(last=False)
            self._engines[named] = Engine(named.build(), self.data, threads=self.threads, plan="native")
        self._engines.move_to_end(named)
        engine = self._engines[named]
        _check_frozen(network, engine.model.frozen)
        _check_numbers(network, (engine.model.layout.size, engine.model.layout.buffer_size), (params, buffers))
        return engine

    def _check(self, network: Network, params: int, buffers: int) -> None:
        """Refuse a model that the policy does not list, does not fit the data, or would be larger than the message."""
        own = self.data
        if len(network.text) > LONGEST_MODEL:
            raise FederationError(f"the model's text has {len(network.text)} letters; at most {LONGEST_MODEL} are read")
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
        self._check_kind(network, params)
        call = parse_one(network.text)
        if ":" not in call.name:
            _check_arguments(call)
            _check_numbers(network, _count(call, network), (params, buffers))

    def _check_kind(self, network: Network, params: int) -> None:
        """Refuse a model for another number of labels or targets, or for another vocabulary."""
        own = self.data
        if network.columns != own.columns:
            theirs, ours = (Target(each.classes, each.columns) for each in (network, own))
            raise FederationError(f"the model is for {theirs}; this site has {ours}")
        tokens = network.vocabulary is not None
        if tokens != (own.vocabulary is not None):
            kinds = "numbers", "tokens"
            raise FederationError(f"the model is for {kinds[tokens]}; this site has {kinds[not tokens]}")
        if network.vocabulary is not None and not (own.vocabulary or 0) <= network.vocabulary <= params:
            theirs_and_ours = f"{network.vocabulary} tokens and {params} parameters; this site has {own.vocabulary}"
            raise FederationError(f"the model has {theirs_and_ours} tokens")


def _check_arguments(call: Call) -> None:
    for value in (*call.args, *(value for _, value in call.kwargs)):
        if isinstance(value, int | float) and abs(value) > LARGEST_ARGUMENT:
            raise FederationError(f"the model {str(call)[:60]!r} has an argument above {LARGEST_ARGUMENT}")


def _count(call: Call, network: Network) -> tuple[int, int]:
    """Return how many parameters and buffers a named network will have, counting both halves if it has two."""
    params, buffers = count_numbers(
        call, network.shape, Target(network.classes, network.columns).width, network.vocabulary
    )
    halves = 2 if network.half else 1
    return halves * params, halves * buffers


def _check_numbers(network: Network, wanted: tuple[int, int], sent: tuple[int, int]) -> None:
    if wanted != sent:
        raise FederationError(
            f"the model {network.text!r} has {wanted[0]} parameters and {wanted[1]} buffers; the message has rows of "
            f"{sent[0]} and {sent[1]}; do the versions match?"
        )


def _check_frozen(network: Network, own: str) -> None:
    if network.frozen != own:
        theirs = line(network.frozen, LONGEST_MODEL) or "nothing"
        raise FederationError(
            f"the frozen part of the model {network.text!r} is {own or 'nothing'} here and {theirs} at the server; "
            "install the same weights at both"
        )
