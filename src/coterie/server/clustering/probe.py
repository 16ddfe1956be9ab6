"""The probe before round 0: trials of one model, clusters and local models, and the advice that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.errors import FederationError
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.server.clustering.advice import MOST, SAMPLES, SURE, Advice, block, cuts, on_halves
from coterie.server.clustering.decision import CANNOT_TELL, CLUSTERS, GUESS, LOCAL, NOT_LEARNT, ONE, Decision, decide
from coterie.server.clustering.trials import SEEN, UNSEEN, Learnt, Trials
from coterie.server.contract import Ask
from coterie.server.distances.vectors import columns, cosine_from_products
from coterie.server.start import initial
from coterie.typing import Array

ROUNDS, STEPS = 5, 10
"""Rounds that models go on for after one model has learnt, and steps that these must have at least."""

MOST_CLIENTS = 1000
"""Of more clients a probe asks a sample."""

FEW_CLIENTS, FEW_ROWS = 10, 30
"""With fewer clients, or held-out examples of a client, an advice says that it may be wrong for that."""

AGREED = 0.6
"""Clusters are advised if so many samples of clients find the same number."""

NO_NUMBER = "one model is not enough, but how many clusters there are, if any, is not clear"
"""Why there is no decision where clusters help, whatever their number."""

FEWEST = 2
"""A client with fewer examples cannot be divided."""


def probe(federation: Federation, key: Key, ask: Ask, fit: Fit) -> Advice:
    """Return advice from trials on halves of clients' data: one model, clusters, and local models.

    One model learns on first halves as the run trains, until its loss hardly falls. From there each client goes on
    alone, on either half; what both halves say of who belongs together gives the number of clusters, and the first half
    alone the clusters. Then one model and the clusters' models go on for as long, and all are judged on second halves.
    Clients that do not answer, or cannot be divided, do not count; of many, a sample does. Clients are taken in the
    order of their names, so that their order in the federation plays no part.
    """
    trials = Trials(ask, fit, asked_of(federation, key))
    first = initial(federation, key, 1)
    learnt = trials.learn(first)
    one, other = (trials.alone(learnt.model, rounds_compared(fit), half) for half in (SEEN, UNSEEN))
    known = np.intersect1d(one.clients, other.clients[other.examples >= FEWEST])
    if not len(known):
        raise FederationError(
            f"none of {len(trials.clients)} clients answered the probe with {FEWEST} examples or more; "
            f"give the number of clusters, or leave out --advise; reasons: {dict(list(one.missing.items())[:3])}"
        )
    ordered = np.array(sorted(known.tolist(), key=lambda client: federation.names[client]))
    products = _cosines_of_halves(one, other, learnt.model.params, ordered)
    by_number = on_halves(products, key)
    (labels,) = cuts(block(products, SEEN, SEEN), [by_number["clusters"]])
    there = replace(trials, clients=known)
    guess = there.constant(federation.model.layout, first)
    held_out = judged(there, learnt, labels[np.argsort(ordered)], first if guess is None else guess)
    decision = if_number_is_sure(decide(held_out.losses), by_number)
    return advice_from(by_number, decision, learnt, held_out, key)


def if_number_is_sure(decision: Decision, by_number: Advice) -> Decision:
    """Return the decision, or none where clusters help but samples of clients do not agree on their number.

    This is so where clients all differ, and where there are more groups than were tried.
    """
    if decision.what != CLUSTERS or (by_number["confidence"] >= AGREED and by_number["clusters"] < MOST):
        return decision
    return replace(decision, what=CANNOT_TELL, why=NO_NUMBER)


def asked_of(federation: Federation, key: Key) -> Array:
    """Return the clients of which a probe asks: all, or a sample of many, drawn by name."""
    everyone = range(len(federation.names))
    drawn = sorted(everyone, key=lambda client: key.number(federation.names[client], "advice"))
    return np.sort(np.array(drawn[:MOST_CLIENTS]))


def rounds_compared(fit: Fit) -> int:
    """Return for how many rounds clients train for updates that are compared: for enough steps, if these are few."""
    return -(-STEPS // fit.minibatches(0)) if fit.epochs is None else 1


def rounds_apart(fit: Fit) -> int:
    """Return for how many rounds models go on apart before they are judged."""
    return max(ROUNDS, rounds_compared(fit))


@dataclass(frozen=True)
class Held:
    """The losses of clients on data that no model has seen, by trial, and the number of these examples."""

    losses: Mapping[str, Array]
    examples: Array


def judged(trials: Trials, learnt: Learnt, labels: Array, guess: Stack) -> Held:
    """Return the losses of the clients that answered in all trials; ``guess`` is the model that ignores its inputs."""
    rounds, everyone = rounds_apart(trials.fit), np.zeros_like(trials.clients)
    apart = {ONE: everyone, LOCAL: np.arange(len(everyone)), **({CLUSTERS: labels} if labels.max() > 0 else {})}
    found = {GUESS: trials.judge(guess, everyone)}
    for name, rows in apart.items():
        models = learnt.model.take(np.zeros(rows.max() + 1, dtype=np.int64))
        found[name] = trials.judge(trials.go_on(models, rows, rounds), rows)
    answered = sorted(set.intersection(*(set(each) for each in found.values())))
    losses = {name: np.array([each[client].loss for client in answered]) for name, each in found.items()}
    return Held(losses, np.array([found[ONE][client].examples for client in answered]))


def advice_from(by_number: Advice, decision: Decision, learnt: Learnt, held_out: Held, key: Key) -> Advice:
    """Return the advice of a probe: the decision, a number of clusters, and how it could be wrong.

    The number is for ``clusters=auto``, which always needs one: 1 where one model is enough or nothing was learnt, else
    the number that predicts held-out updates best.
    """
    what, found = decision.what, by_number["clusters"]
    number = 1 if what == ONE or decision.why == NOT_LEARNT else found
    share = share_that_agrees(held_out.losses, CLUSTERS if decision.why == NO_NUMBER else what, key)
    confidence = min(share, by_number["confidence"]) if what == CLUSTERS or decision.why == NO_NUMBER else share
    doubts = list(doubts_about(held_out, learnt, confidence))
    return {
        "decision": what,
        "one_model_enough": None if what == CANNOT_TELL and decision.why != NO_NUMBER else what == ONE,
        "clusters": number,
        "confidence": confidence,
        **{name: by_number[name] for name in ("pairs", "votes", "by")},
        "losses": {name: rounded(float(each.mean())) for name, each in held_out.losses.items()},
        "gains": {name: {k: rounded(v) for k, v in vars(each).items()} for name, each in decision.gains.items()},
        "rounds": learnt.rounds,
        "doubts": doubts,
        "text": " ".join([headline(decision, found), *doubts_in_words(doubts)]),
    }


def rounded(value: float) -> float | None:
    """Return a number to six digits, which another order of clients does not change; None if it is not finite."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


def share_that_agrees(losses: Mapping[str, Array], what: str, key: Key) -> float:
    """Return the share of samples of clients, drawn with replacement, of which the same decision comes."""
    rng, count = key.generator("decision"), max(1, len(losses[ONE]))
    samples = (rng.integers(count, size=count) for _ in range(SAMPLES))
    same = [decide({name: each[sample] for name, each in losses.items()}).what == what for sample in samples]
    return float(np.mean(same))


def headline(decision: Decision, clusters: int) -> str:
    """Return the decision as a sentence for a practitioner."""
    heads = {
        ONE: "One model is enough",
        CLUSTERS: f"{clusters} clusters",
        LOCAL: "Local models, because clients all differ",
        CANNOT_TELL: "Cannot tell",
    }
    return f"{heads[decision.what]}: {decision.why}."


def doubts_about(held_out: Held, learnt: Learnt, confidence: float) -> Iterator[str]:
    """Yield how an advice could be wrong."""
    clients, rows = len(held_out.losses[ONE]), int(np.median(held_out.examples))
    if clients < FEW_CLIENTS:
        yield f"only {clients} clients"
    if rows < FEW_ROWS:
        yield f"only about {rows} held-out examples a client"
    if learnt.falling:
        yield f"the loss was still falling after {learnt.rounds} rounds"
    if confidence < SURE:
        yield f"only {confidence:.0%} of samples of clients agree".replace("%", " %")


def doubts_in_words(doubts: Sequence[str]) -> list[str]:
    """Return a sentence of doubts, if there are any."""
    return [f"It may be wrong: {', '.join(doubts)}."] if doubts else []


def _cosines_of_halves(one: Replies, other: Replies, start: Array, clients: Array) -> Array:
    """Return the cosines of these clients' updates, in this order: first halves, then second."""
    both = [replies.without(~np.isin(replies.clients, clients), {}) for replies in (one, other)]
    products = np.zeros((2 * len(clients), 2 * len(clients)))
    starts = np.broadcast_to(start[0], (len(clients), start.shape[1]))
    for blocks in zip(*(columns(replies, starts) for replies in both), strict=True):
        rows = np.concatenate(blocks)
        products += rows @ rows.T
    order = np.searchsorted(both[0].clients, clients)
    rows = np.concatenate([order, order + len(clients)])
    found: Array = cosine_from_products(products)[np.ix_(rows, rows)]
    return found
