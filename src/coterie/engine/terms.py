"""Penalty terms of local training and their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.errors import UsageError
from coterie.models.layout import Layout
from coterie.models.model import Model, head_of
from coterie.protocol.task import Contrast, Near, Others, Proximal, Term


class Received(NamedTuple):
    """What clients got beside the model they train: all cluster models, references, and the row of each client.

    ``placed`` is False for a client that had no cluster when the round began: terms about clusters leave it alone.
    """

    models: Tensor
    buffers: Tensor
    references: Tensor
    rows: Tensor
    placed: Tensor


NOTHING = Received(*(torch.empty(0) for _ in Received._fields))


def gradient(term: Term, params: Tensor, start: Tensor, received: Received, layout: Layout) -> Tensor:
    """The gradient of ``term`` at ``params`` for clients that received ``start``; zero outside of the term's part.

    All terms but the proximal one are about clusters: they are zero for clients that have none yet.
    """
    if isinstance(term, Proximal):
        return penalty(term, params, start, received)
    part, placed = getattr(term, "part", "all"), received.placed.unsqueeze(-1)
    if part == "all":
        return penalty(term, params, start, received) * placed
    place = layout.part(part)
    inside = received._replace(models=received.models[..., place], references=received.references[..., place])
    full = torch.zeros_like(params)
    full[..., place] = penalty(term, params[..., place], start[..., place], inside) * placed
    return full


@singledispatch
def penalty(term: Term, params: Tensor, start: Tensor, received: Received) -> Tensor:
    """The gradient of a term on the coordinates that it is about."""
    raise NotImplementedError(f"no gradient is known for {type(term).__name__}")


@penalty.register
def _(term: Proximal, params: Tensor, start: Tensor, received: Received) -> Tensor:
    return (params - start) * term.strength


@penalty.register
def _(term: Near, params: Tensor, start: Tensor, received: Received) -> Tensor:
    return (params - received.references[-1]) * term.strength


@penalty.register
def _(term: Others, params: Tensor, start: Tensor, received: Received) -> Tensor:
    shares = torch.tensor(term.shares, dtype=params.dtype, device=params.device)
    weights = shares * (torch.arange(len(shares), device=params.device) != received.rows.unsqueeze(-1))
    away: Tensor = params * weights.sum(-1, keepdim=True) - weights @ received.models
    return away * term.strength


@penalty.register
def _(term: Contrast, params: Tensor, start: Tensor, received: Received) -> Tensor:
    """With p_k = softmax(s_k / t): the sum over k of (p_k - [k = c]) / t times the gradient of the cosine s_k."""
    lengths = received.models.norm(dim=-1).clamp_min(TINY)
    own = params.norm(dim=-1, keepdim=True).clamp_min(TINY)
    cosines = params @ received.models.T / (own * lengths)
    slope = pushes(cosines, received.rows, term)
    towards: Tensor = (slope / lengths) @ received.models / own
    along: Tensor = (slope * cosines).sum(-1, keepdim=True) * params / own**2
    return towards - along


TINY = 1e-12
"""A length below this is taken as this: the cosine of nothing is 0 and has no gradient to speak of."""


def pushes(cosines: Tensor, rows: Tensor, term: Contrast) -> Tensor:
    """The derivative of the contrast by each cosine ``(..., K)``, for clients of these rows."""
    chances = torch.softmax(cosines / term.temperature, -1)
    own = torch.arange(cosines.shape[-1], device=cosines.device) == rows.unsqueeze(-1)
    return (chances - own.to(chances)) * (term.strength / term.temperature)


class Catch:
    """Keeps what the head of a module was last given."""

    def __init__(self, module: nn.Module, model: Model) -> None:
        name = head_of(module, model.half)
        if name is None:
            raise UsageError(f"model {model.text!r} has no head whose inputs could be compared; name a submodule head")
        self.seen = torch.empty(0)
        module.get_submodule(name).register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.seen = inputs[0]

    def take(self) -> Tensor:
        """The representation of the last forward pass, one row an example; it is forgotten here."""
        seen, self.seen = self.seen, torch.empty(0)
        return seen.flatten(1)


class Anchors:
    """The cluster models as they are seen by a client that contrasts them: frozen, in evaluation mode."""

    def __init__(self, model: Model, like: Tensor) -> None:
        self.model = model
        self.params = like.new_zeros(model.layout.size)
        self.buffers = like.new_zeros(model.layout.buffer_size)
        self.module = model.bind(self.params, self.buffers).eval().requires_grad_(False)
        self.catch: Catch | None = None

    @torch.no_grad()
    def see(self, x: Tensor, received: Received, of: str) -> Tensor:
        """The last layer's inputs or outputs of each example under every cluster model, ``(K, examples, features)``."""
        if of == "inputs" and self.catch is None:
            self.catch = Catch(self.module, self.model)
        found = []
        for params, buffers in zip(received.models, received.buffers, strict=True):
            self.params.copy_(params)
            self.buffers.copy_(buffers)
            outputs = self.module(x)
            found.append(outputs if self.catch is None or of == "outputs" else self.catch.take())
        return torch.stack(found)


def check_contrasts(terms: Iterable[Contrast], model: Model) -> None:
    """A single output points nowhere: its cosines have no gradient."""
    if model.classes is None and any(term.of == "outputs" for term in terms):
        raise UsageError("con-rep(of=outputs) compares directions of outputs, and a regression has one; use of=inputs")


def contrast(term: Contrast, own: Tensor, anchors: Tensor, weights: Tensor | None, received: Received) -> Tensor:
    """The sum over clients of the term, for representations ``own (..., B, F)`` and ``anchors (K, ..., B, F)``.

    ``weights (..., B)`` sum to 1 over a client's examples; None: the plain mean.
    """
    cosines = F.cosine_similarity(own.unsqueeze(0), anchors, dim=-1).movedim(0, -1) / term.temperature
    if term.each == "batch":
        chances = torch.log_softmax(_mean(cosines, weights), -1)
    else:
        chances = _mean(torch.log_softmax(cosines, -1), weights)
    mine = torch.arange(chances.shape[-1], device=chances.device) == received.rows.unsqueeze(-1)
    return -term.strength * chances[mine & received.placed.unsqueeze(-1)].sum()


def _mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over examples of values ``(..., B, K)``."""
    return values.mean(-2) if weights is None else (values * weights.unsqueeze(-1)).sum(-2)
