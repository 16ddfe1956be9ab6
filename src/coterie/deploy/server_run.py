"""A run on the sites of a federation: wait for the sites, check that their data agree, train, and record the results.

The training itself is the same loop as in a simulation, on clients that are reached through bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coterie.data import Schema
from coterie.deploy.delivery import delivery_notes, hand_over
from coterie.deploy.deployment import SCHEMA
from coterie.deploy.logs import FACTS
from coterie.deploy.order import DELIVER, TRAIN, Order
from coterie.deploy.schema_agreement import agree, schema_file
from coterie.deploy.status import RUNNING, StatusBoard
from coterie.deploy.versions import mismatch
from coterie.errors import FederationError
from coterie.experiments import building
from coterie.experiments.conclusion import Conclusion
from coterie.experiments.placement import FEDERATION, load_trained
from coterie.experiments.records import DataFacts
from coterie.experiments.run_folder import load_config
from coterie.experiments.session import Finished, Progress, Session
from coterie.experiments.settings import Settings
from coterie.experiments.summary import Row
from coterie.experiments.warm_start import rounds_before, with_rounds
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol.message import UNKNOWN_SIZES, Sizes
from coterie.reporting.durations import duration
from coterie.target import BINARY
from coterie.terminal import line
from coterie.tracking.track import track
from coterie.typing import Array
from coterie.wire import codec
from coterie.wire.remote import PackedReplies, Remote
from coterie.wire.reply_checks import open_reply
from coterie.wire.requests import SiteDescription, Unread, pack_hello, read_part

MOST_CLASSES = 1 << 16
"""The most classes, labels or targets that a site may report: a model for all of them is built here."""

MOST_TOKENS = 1 << 20
"""The most tokens that a site may report."""

LONGEST_FACT = 100
"""The most letters that an error quotes of what a site reports about its data."""

Greeting = SiteDescription | Unread
"""What a site answers to a hello: what its data are, or that its table has no schema yet."""

EQUAL = ("shape", "columns", "unit", "class_names")
"""The entries in which the descriptions of all sites must be equal."""


_log = logging.getLogger(__name__)


class Sites(Protocol):
    """Named sites: which are connected, and an exchange of packed messages with some of them."""

    def connected(self) -> Mapping[str, int]:
        """Return the sites that are connected now."""

    def __call__(self, requests: Mapping[int, bytes]) -> PackedReplies:
        """Carry requests to sites, by position, and bring the replies back."""


def carry_out(order: Order, sites: Sites, board: StatusBoard) -> Finished:
    """Carry out an order and keep the status up to date."""
    with board.recording_end():
        out, earlier = Path(order.out), order.begins_with()
        before = rounds_before(out, order.resume, earlier)
        descriptions, misfits = with_data(order, sites, wait_for_sites(order, sites, board))
        board.sites(misfits)
        class_names = next(iter(descriptions.values())).class_names
        known = with_schema(agree_on_data(order, descriptions), class_names, schema_file(order))
        settings = with_rounds(order.experiment(tables=known.schema is not None), before)
        algorithm = building.build_algorithm(settings)
        model = build_model(settings.model, known.shape, known.classes, known.columns, known.vocabulary)
        full = replace(settings, model=model.text, lr=settings.lr or model.default_lr)

        def reach(network: Model) -> Remote:
            return Remote(order.sites, network, sites, run=order.run, sizes=reported_sizes(order, descriptions))

        def progress(record: dict[str, Any]) -> None:
            board.update(state=RUNNING, record=record)
            _log.info("round %d is done", record["round"] + 1, extra={FACTS: {"run": order.run, "record": record}})

        notes = [f"the run begins without {name}: {why}" for name, why in misfits.items()]
        notes += bounded_weights(descriptions, settings.weight_bound or 0)
        notes += [] if earlier is None else [earlier.note(order.sites)]
        board.update(state=RUNNING, rounds=settings.rounds, notes=notes)

        def train_reference(other: Settings, folder: Path | None, _: Progress | None) -> Sequence[Row]:
            def beside_progress(record: dict[str, Any]) -> None:
                board.update(beside={"algorithm": other.algorithm, "round": record["round"], "rounds": other.rounds})

            session = Session(building.build_algorithm(other), known, model, other, reach)
            return session.train(folder, True, beside_progress).trained.members

        conclude = partial(Conclusion, facts=known, settings=full, guesses=None, own=False, out=out)
        beside = conclude(make=train_reference) if settings.references else None
        session = Session(algorithm, known, model, full, reach, before)
        with track(full, out) as sink:
            finished = session.train(out, order.resume, sink.beside(progress), beside, earlier)
            sink.finished(finished.summary)
        if order.deliver:
            sizes = dict(zip(order.sites, reported_sizes(order, descriptions), strict=True))
            delivered = hand_over(order, finished.trained, known.names, sites, sizes=sizes)
            board.update(notes=[*notes, *delivery_notes(delivered)])
        return finished


def deliver_again(order: Order, sites: Sites, board: StatusBoard) -> None:
    """Hand over the models of a run that is over to the sites that lack them, also to sites that joined later."""
    with board.recording_end():
        folder = Path(order.out)
        trained, names = load_trained(folder), tuple(load_config(folder)["examples"]["clients"])
        board.update(state=RUNNING, rounds=trained.state.round)
        delivered = hand_over(order, trained, names, sites, welcome=partial(_send_schema, order, sites))
        board.update(notes=delivery_notes(delivered))


def _send_schema(order: Order, sites: Sites, newcomers: Sequence[int]) -> None:
    """Send the schema of a run to sites that had no part in it and whose tables have none."""
    greeted, _ = ask_descriptions(order, sites, newcomers)
    wanting = [at for at in newcomers if isinstance(greeted.get(order.sites[at]), Unread)]
    if wanting and schema_file(order).is_file():
        agree(order, sites, wanting)


JOBS: Mapping[str, Callable[[Order, Sites, StatusBoard], object]] = {TRAIN: carry_out, DELIVER: deliver_again}
"""How each kind of order is carried out."""


def with_data(
    order: Order, sites: Sites, greeted: Mapping[str, Greeting]
) -> tuple[dict[str, SiteDescription], dict[str, str]]:
    """Return the descriptions of sites, after those whose tables had no schema have agreed on one.

    With them comes the problem of each site that did not: which columns do not fit, or that it gave no answer.
    """
    described = {name: about for name, about in greeted.items() if isinstance(about, SiteDescription)}
    if len(described) == len(greeted):
        return described, {}
    wanting = [at for at, name in enumerate(order.sites) if name in greeted and name not in described]
    if described and not schema_file(order).is_file():
        have, lacks = next(iter(described)), order.sites[wanting[0]]
        raise FederationError(
            f"{have} has its examples and {lacks} has a table without a {SCHEMA}; copy {have}'s {SCHEMA} to the "
            "server's folder, and it is sent to the others"
        )
    agreement = agree(order, sites, wanting)
    fitting = [at for at in wanting if order.sites[at] not in agreement.problems]
    found, problems = ask_descriptions(order, sites, fitting)
    described |= {name: about for name, about in found.items() if isinstance(about, SiteDescription)}
    needed, problems = order.quorum or order.minimum, {**agreement.problems, **problems}
    if len(described) < needed:
        why = "; ".join(f"{name}: {each}" for name, each in list(problems.items())[:3])
        raise FederationError(f"the tables of {len(described)} sites fit the schema, {needed} are needed; {why}")
    return {name: described[name] for name in order.sites if name in described}, problems


def wait_for_sites(order: Order, sites: Sites, board: StatusBoard, pause: float = 0.5) -> dict[str, Greeting]:
    """Return the greetings of the sites once enough are ready; raise an error if the order's patience ends first.

    A connected site may not receive messages yet: after a restart of the server it retries only now and then.
    """
    until, ready = time.monotonic() + order.patience, dict[str, Greeting]()
    while True:
        connected = sites.connected()
        problems = {name: "not connected" for name in order.sites if name not in {**connected, **ready}}
        board.sites(problems)
        new = [client for client, name in enumerate(order.sites) if name in connected and name not in ready]
        found, failed = ask_descriptions(order, sites, new)
        ready, problems = ready | found, problems | failed
        board.update(awaited=awaited(order, len(ready)))
        late = time.monotonic() > until
        needed = order.quorum or order.minimum if late else order.minimum
        if len(ready) >= needed:
            return ready
        if late:
            raise FederationError(
                f"{len(ready)} of {len(order.sites)} sites are ready after {order.patience:g} s, {needed} are "
                f"needed; {'; '.join(f'{name}: {why}' for name, why in list(problems.items())[:3])}"
            )
        time.sleep(pause)


def awaited(order: Order, ready: int) -> str:
    """Return for what a run waits before its first round: how many sites are ready, and with how many it begins."""
    later = f", or with {order.quorum} after {duration(order.patience)}" if 0 < order.quorum < order.minimum else ""
    return f"for sites: {ready} of {len(order.sites)} are ready; it begins with {order.minimum}{later}"


def ask_descriptions(order: Order, sites: Sites, clients: Sequence[int]) -> tuple[dict[str, Greeting], dict[str, str]]:
    """Send a hello to some sites; return what they answer, and the problem of each site that does not."""
    if not clients:
        return {}, {}
    packed = sites(dict.fromkeys(clients, pack_hello(order.run)))
    found: dict[str, Greeting] = {}
    problems = {order.sites[client]: line(why, codec.LONGEST_PROBLEM) for client, why in packed.missing.items()}
    for client, content in packed.answers.items():
        name = order.sites[client]
        try:
            found[name] = _checked_greeting(name, open_reply(content)[1])
        except FederationError as error:
            problems[name] = line(error, codec.LONGEST_PROBLEM)
    return found, problems


def _checked_greeting(name: str, header: Mapping[str, Any]) -> Greeting:
    """Return what a site answered to a hello; refuse another name, another version and impossible sizes."""
    if "wants_schema" in header:
        unread = read_part(Unread, header["wants_schema"], "wants_schema")
        _check_identity(name, unread)
        return unread
    return _checked_description(name, header.get("site"))


def _checked_description(name: str, value: Any) -> SiteDescription:
    """Return the description that a site sent."""
    about = read_part(SiteDescription, value, "site")
    _check_identity(name, about)
    _check_sizes(about)
    _check_kind(about)
    return about


def _check_identity(name: str, about: Greeting) -> None:
    """Refuse a site that has another name than its key, or another version of coterie."""
    if about.name != name:
        raise FederationError(f"calls itself {about.name[:64]!r}; correct its site.toml")
    other = mismatch(about.version, metadata.version("coterie"))
    if other is not None:
        raise FederationError(other)


def _check_sizes(about: SiteDescription) -> None:
    """Refuse impossible numbers of examples and classes."""
    if min(about.train, about.test) < 1 or about.validation < 0 or (about.classes or 1) > MOST_CLASSES:
        sizes = (
            f"{about.train} train, {about.test} test, {about.validation} validation examples, {about.classes} classes"
        )
        raise FederationError(f"reports impossible sizes: {sizes}; at least 1, 1, 0 and at most {MOST_CLASSES} classes")
    if about.majority is not None and not 0 <= about.majority <= about.test:
        raise FederationError(
            f"reports {about.majority:g} majority examples of {about.test}; it must be 0 to {about.test}"
        )


def _check_kind(about: SiteDescription) -> None:
    """Refuse impossible numbers of labels, targets and tokens."""
    for what, value, least, most in (
        ("columns", about.columns, 2, MOST_CLASSES),
        ("vocabulary", about.vocabulary, 1, MOST_TOKENS),
    ):
        if value is not None and not least <= value <= most:
            raise FederationError(f"reports {what} {value}; it must be from {least} to {most}")
    if about.columns is not None and about.classes not in (None, BINARY):
        raise FederationError(f"reports {about.columns} labels of {about.classes} values; each must be 0 or 1")


def agree_on_data(order: Order, descriptions: Mapping[str, SiteDescription]) -> DataFacts:
    """Return what is known of the data of all sites; refuse sites that differ. Sites not yet ready have size 0."""
    first, *others = descriptions
    for name in others:
        for what in EQUAL:
            if getattr(descriptions[name], what) != getattr(descriptions[first], what):
                ours, theirs = (line(getattr(descriptions[each], what), LONGEST_FACT) for each in (first, name))
                raise FederationError(f"{name} has {what} {theirs} where {first} has {ours}; all sites need the same")
    classes = [about.classes for about in descriptions.values()]
    if None in classes and any(number is not None for number in classes):
        raise FederationError("some sites have classes and others a real target; all need the same")
    tokens = [about.vocabulary for about in descriptions.values()]
    if None in tokens and any(number is not None for number in tokens):
        raise FederationError("some sites have tokens and others numbers as examples; all need the same")
    about = descriptions[first]
    train, test, _ = np.array(reported_sizes(order, descriptions), dtype=np.int64).T.copy()
    return DataFacts(
        data=FEDERATION,
        partition="natural",
        names=order.sites,
        shape=about.shape,
        classes=max((number for number in classes if number is not None), default=None),
        train=train,
        test=test,
        has_validation=all(each.validation for each in descriptions.values()),
        unit=about.unit,
        columns=about.columns,
        vocabulary=max((number for number in tokens if number is not None), default=None),
        majority_correct=reported_majority(order, descriptions),
    )


def reported_majority(order: Order, descriptions: Mapping[str, SiteDescription]) -> Array | None:
    """Return how many test examples of each site are of its most frequent class; None unless every site tells."""
    told = [descriptions[name].majority if name in descriptions else None for name in order.sites]
    known = [number for number in told if number is not None]
    return np.array(known) if len(known) == len(told) else None


def reported_sizes(order: Order, descriptions: Mapping[str, SiteDescription]) -> list[Sizes]:
    """Return how many examples each site reports; nothing for a site that is not ready yet."""
    sizes = {name: Sizes(about.train, about.test, about.validation) for name, about in descriptions.items()}
    return [sizes.get(name, UNKNOWN_SIZES) for name in order.sites]


def with_schema(known: DataFacts, classes: Sequence[str], path: Path) -> DataFacts:
    """Add the schema of the sites' tables, by which tables of newcomers are read; ignore a schema of other data."""
    if not path.is_file():
        return known
    schema = Schema.load(path)
    fits = known.shape == (schema.width,) and tuple(classes) == schema.class_names
    return replace(known, schema=schema) if fits else known


def bounded_weights(descriptions: Mapping[str, SiteDescription], bound: float) -> list[str]:
    """Return a note for each site that reports more examples than count under the weight bound."""
    usual = float(np.median([about.train for about in descriptions.values()]))
    return [
        f"{name} says that it has {about.train} examples, more than {bound:g} times the median of {usual:g}: it counts "
        f"as one of {bound * usual:g}; if it is right, raise weight-bound"
        for name, about in descriptions.items()
        if bound and about.train > bound * usual
    ]
