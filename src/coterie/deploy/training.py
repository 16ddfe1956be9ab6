"""The server's side of a run: wait for sites, learn what they hold, train by the one loop, record as a simulation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie.data import Schema
from coterie.deploy.order import Order
from coterie.deploy.status_file import RUNNING, Board
from coterie.errors import FederationError
from coterie.experiments import building
from coterie.experiments.data_facts import Known
from coterie.experiments.placement import FEDERATION
from coterie.experiments.session import Finished, Session
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol.message import UNKNOWN_SIZES, Sizes
from coterie.terminal import line
from coterie.wire import codec
from coterie.wire.remote import Heard, Remote, open_reply
from coterie.wire.requests import Hello, pack_hello


class Sites(Protocol):
    """A way to reach named sites: who is there, and an exchange of packed bytes with some of them."""

    def connected(self) -> Mapping[str, int]:
        """The sites that are there now."""

    def __call__(self, requests: Mapping[int, bytes]) -> Heard:
        """Carry requests, by position, and the replies back."""


def carry_out(order: Order, sites: Sites, board: Board) -> Finished:
    """All of an order; the board says how it goes."""
    with board.watching():
        settings = order.experiment()
        algorithm = building.build_algorithm(settings)
        told = gather(order, sites, board)
        known = with_schema(agree(order, told), next(iter(told.values())).class_names, order.schema)
        model = build_model(settings.model, known.shape, known.classes)
        full = replace(settings, model=model.text, lr=settings.lr or model.default_lr)

        def reach(network: Model) -> Remote:
            return Remote(order.sites, network, sites, order.run, sizes_told(order, told))

        def progress(record: dict[str, Any]) -> None:
            board.say(state=RUNNING, record=record)

        board.say(state=RUNNING, rounds=settings.rounds, notes=counted_less(told, settings.weight_bound or 0))
        session = Session(algorithm, known, model, full, reach)
        return session.train(Path(order.out), order.resume, progress)


def with_schema(known: Known, classes: Sequence[str], path: str | None) -> Known:
    """The same, with the schema of the sites' tables, by which newcomers' tables are read; not one of other data."""
    if path is None:
        return known
    schema = Schema.load(Path(path))
    fits = known.shape == (schema.width,) and tuple(classes) == (schema.classes or ())
    return replace(known, schema=schema) if fits else known


def gather(order: Order, sites: Sites, board: Board, pause: float = 0.5) -> dict[str, Hello]:
    """What each site tells of itself, as soon as enough have; too few after the order's patience are an error.

    A site that is there may not hear us yet: after a restart of the server it tries again only now and then.
    """
    until, told = time.monotonic() + order.patience, dict[str, Hello]()
    while True:
        there = sites.connected()
        problems = {name: "not connected" for name in order.sites if name not in {**there, **told}}
        board.sites(problems)
        new = [place for place, name in enumerate(order.sites) if name in there and name not in told]
        found, failed = greet(order, sites, new)
        told, problems = told | found, problems | failed
        late = time.monotonic() > until
        needed = order.quorum or order.minimum if late else order.minimum
        if len(told) >= needed:
            return told
        if late:
            raise FederationError(
                f"{len(told)} of {len(order.sites)} sites are ready after {order.patience:g} s, {needed} are "
                f"needed; {'; '.join(f'{name}: {why}' for name, why in list(problems.items())[:3])}"
            )
        time.sleep(pause)


def greet(order: Order, sites: Sites, places: Sequence[int]) -> tuple[dict[str, Hello], dict[str, str]]:
    """What these sites tell of themselves, and why others do not; the name must be that of the site's key."""
    if not places:
        return {}, {}
    heard = sites(dict.fromkeys(places, pack_hello(order.run)))
    told: dict[str, Hello] = {}
    problems = {order.sites[place]: line(why, codec.LONGEST_PROBLEM) for place, why in heard.missing.items()}
    for place, content in heard.answers.items():
        name = order.sites[place]
        try:
            told[name] = _believed(name, open_reply(content)[1].get("site"))
        except FederationError as error:
            problems[name] = line(error, codec.LONGEST_PROBLEM)
    return told, problems


def counted_less(told: Mapping[str, Hello], bound: float) -> list[str]:
    """Say which sites have so many examples, by their own word, that not all of them count."""
    usual = float(np.median([about.train for about in told.values()]))
    return [
        f"{name} says that it has {about.train} examples, more than {bound:g} times the median of {usual:g}: it counts "
        f"as one of {bound * usual:g}; if it is right, raise weight-bound"
        for name, about in told.items()
        if bound and about.train > bound * usual
    ]


def sizes_told(order: Order, told: Mapping[str, Hello]) -> list[Sizes]:
    """How many examples each site says it has; nothing of one that is not heard of yet."""
    sizes = {name: Sizes(about.train, about.test, about.validation) for name, about in told.items()}
    return [sizes.get(name, UNKNOWN_SIZES) for name in order.sites]


def _believed(name: str, told: Any) -> Hello:
    """What a site tells of itself, if it can be so."""
    about: Hello = codec.read_as(Hello, {**told, "kind": "Hello"} if isinstance(told, dict) else told, "site")
    if about.name != name:
        raise FederationError(f"calls itself {about.name[:64]!r}; correct its site.toml")
    if about.version != metadata.version("coterie"):
        ours = metadata.version("coterie")
        raise FederationError(f"has coterie {line(about.version, 20)} where the server has {ours}; install the same")
    if min(about.train, about.test) < 1 or about.validation < 0 or (about.classes or 1) > MOST_CLASSES:
        raise FederationError(f"tells sizes that cannot be: {about.train}, {about.test}, {about.classes} classes")
    return about


MOST_CLASSES = 1 << 16
"""A site that tells of more is not believed: a model for so many would be built here."""

LONGEST_FACT = 100
"""Letters that are told of what a site says of its data."""

ALIKE = ("shape", "unit", "class_names")
"""What all sites must agree in."""


def agree(order: Order, told: Mapping[str, Hello]) -> Known:
    """What the sites' data are like, if they are alike; sites that are not heard of yet have sizes 0."""
    first, *others = told
    for name in others:
        for what in ALIKE:
            if getattr(told[name], what) != getattr(told[first], what):
                ours, theirs = (line(getattr(told[each], what), LONGEST_FACT) for each in (first, name))
                raise FederationError(f"{name} has {what} {theirs} where {first} has {ours}; all sites need the same")
    classes = [about.classes for about in told.values()]
    if None in classes and any(number is not None for number in classes):
        raise FederationError("some sites have classes and others a real target; all need the same")

    def sizes(what: str) -> Any:
        return np.array([getattr(told[name], what) if name in told else 0 for name in order.sites], dtype=np.int64)

    about = told[first]
    return Known(
        data=FEDERATION,
        partition="natural",
        names=order.sites,
        shape=about.shape,
        classes=max((number for number in classes if number is not None), default=None),
        train=sizes("train"),
        test=sizes("test"),
        validated=all(each.validation for each in told.values()),
        unit=about.unit,
    )
