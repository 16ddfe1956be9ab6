"""Add-ons: functions from an algorithm to one with penalty terms, fine-tuning or kept momentum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coterie.algorithms.method import add_on
from coterie.errors import UsageError, require
from coterie.protocol.stack import Stack
from coterie.protocol.task import SEEN, Contrast, Fit, Near, Others, Task, Term
from coterie.server.contract import Algorithm, State, as_it_is, mean_model

AddOn = Callable[[Algorithm], Algorithm]
Terms = Callable[[State], tuple[Term, ...]]

LAYERS = {"projection": ("projection", "features"), "last": ("head", "body"), "all": ("all", "all")}
"""The parts of a model that are contrasted and shared, by the layer that a text names."""


@add_on
def cks(strength: float = 0.1, others: bool = False) -> AddOn:
    """Share knowledge between clusters by a penalty strength/2 |w - G|^2 towards the mean G of all cluster models.

    G = sum_k s_k T_k with s_k the example share of cluster k. Thesis chapter 5, eq. 5.6; strength in {1, 0.1, 0.01,
    0.001}. ``others=true`` is eq. 5.5, a weighted sum over the other clusters' models, which are then sent to every
    client. Off in round 0, before clusters differ. With one cluster it is a proximal term.
    """
    if others:
        term = Others(strength, ())
        return with_terms(lambda state: (replace(term, shares=tuple(map(float, state.shares))),))
    return with_terms(always_these(Near(strength)), reads_mean=True)


@add_on
def con_para(strength: float = 0.5, temperature: float = 1.0, layer: str = "all") -> AddOn:
    """Draw clients to their cluster's parameters and away from those of the others (thesis eq. 4.3).

    strength * -log(exp(s_c / t) / sum_k exp(s_k / t)) with s_k = cos(w, T_k): the thesis prints the ratio alone, its
    negative logarithm is minimised. Strength in {0.1, 0.5, 2, 5}, temperature in {0.1, 1, 10}. ``layer``: all
    parameters, the ``projection`` (all fully connected layers after the convolutions) or the ``last`` layer. Off until
    clients have clusters. All cluster models are sent to every client.
    """
    contrasted, _ = _layer(layer)
    return with_terms(always_these(Contrast(strength, temperature, part=contrasted)))


@add_on
def con_rep(strength: float = 0.5, temperature: float = 1.0, of: str = "inputs", each: str = "batch") -> AddOn:
    """Contrast like con-para, by the cosine of representations of the same minibatch (thesis eq. 4.4).

    ``of`` the last layer's inputs, or outputs; ``each`` batch: one term of the mean cosines over the minibatch, or
    example: a term for each, as the public code. Every step runs the minibatch through all cluster models as well, so
    it costs K more forward passes.
    """
    require(of in SEEN, "of", repr(of), " or ".join(SEEN))
    return with_terms(always_these(Contrast(strength, temperature, of=of, each=each)))


@add_on
def con_cks(strength: float = 0.5, temperature: float = 1.0, sharing: float = 0.1, layer: str = "projection") -> AddOn:
    """Contrast the last layers and share the others: con-para on the former, cks on the latter (thesis chapter 6).

    ``layer``: the ``projection`` is all fully connected layers after the convolutions (in a network without
    convolutions its last layer); or the ``last`` one alone; or ``all``: both terms on everything.
    """
    contrasted, shared = _layer(layer)
    terms = Contrast(strength, temperature, part=contrasted), Near(sharing, part=shared)
    return with_terms(always_these(*terms), reads_mean=True)


def _layer(name: str) -> tuple[str, str]:
    require(name in LAYERS, "layer", repr(name), " or ".join(LAYERS))
    return LAYERS[name]


@add_on
def finetune(steps: int | None = None, epochs: int | None = None) -> AddOn:
    """Train the model that each client is served once more on its train data, and test it with the result.

    Thesis chapter 7, "one round without aggregation": by default as long as a round of the algorithm.
    """

    def add(algorithm: Algorithm) -> Algorithm:
        longer = (
            algorithm.fit if steps is None and epochs is None else replace(algorithm.fit, steps=steps, epochs=epochs)
        )
        return replace(algorithm, serve=replace(algorithm.serve, fit=(longer,)))

    return everywhere(add)


def keeping_momentum(algorithm: Algorithm, member: int = 0) -> Algorithm:
    """Let clients begin a round with the momentum with which they ended their last.

    The thesis' public code keeps its optimisers. This is for the training of rounds only: probes, starts and
    fine-tuning begin with zero momentum. Each member of an ensemble has separate momenta.
    """

    def task(state: State) -> Task:
        plain = algorithm.task(state)
        return replace(plain, fit=tuple(replace(fit, keeps=str(member)) for fit in plain.fit))

    others = tuple(keeping_momentum(each, number) for number, each in enumerate(algorithm.members, member + 1))
    return replace(algorithm, task=task, members=others)


def always_these(*terms: Term) -> Terms:
    """Give the same terms in every state; wrong values are refused when the terms are made, not in a round."""
    return lambda state: terms


def with_terms(terms: Terms, reads_mean: bool = False) -> AddOn:
    """Add penalty terms to every pass, from round 1 on and for clients that have a cluster by then.

    If the terms read the mean model, it is sent as the last reference, behind those of the algorithm itself.
    """

    def add(algorithm: Algorithm) -> Algorithm:
        if algorithm.network is not as_it_is:
            raise UsageError("an add-on with penalties must stand before cam; write 'wecfl+cks+cam'")

        def begun(state: State) -> bool:
            return state.round > 0 and bool(state.placed.any())

        def task(state: State) -> Task:
            plain = algorithm.task(state)
            if not begun(state):
                return plain
            return replace(plain, fit=tuple(_with(fit, terms(state)) for fit in plain.fit))

        def references(state: State) -> Stack | None:
            own = algorithm.references(state)
            if not reads_mean or not begun(state) or _has_mean(algorithm.task(state)):
                return own
            return mean_model(state) if own is None else own.plus(mean_model(state))

        return replace(algorithm, task=task, references=references)

    return everywhere(add)


def everywhere(add: AddOn) -> AddOn:
    """Apply an add-on to each member of an ensemble."""

    def apply(algorithm: Algorithm) -> Algorithm:
        return replace(add(algorithm), members=tuple(apply(member) for member in algorithm.members))

    return apply


def _has_mean(task: Task) -> bool:
    """Return whether the mean model is already the last reference, because a term reads it there."""
    return any(isinstance(term, Near) for fit in task.fit for term in fit.terms)


def _with(fit: Fit, terms: tuple[Term, ...]) -> Fit:
    if fit.part != "all":
        raise UsageError(f"this add-on needs a pass over the whole model and there is one over {fit.part}")
    return replace(fit, terms=(*fit.terms, *terms))
