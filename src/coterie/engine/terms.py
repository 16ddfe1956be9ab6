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
    """What the terms of a pass read: all cluster models, the references, and the row that each client trains.

    ``placed`` is False for a client that had no cluster when the round began: terms about clusters leave it alone.
    """

    models: Tensor
    buffers: Tensor
    references: Tensor
    rows: Tensor
    placed: Tensor


NOTHING = Received(*(torch.empty(0) for _ in Received._fields))
"""What a pass without terms reads."""

TINY = 1e-12
"""Lengths are taken as at least this, so that the cosine of a vector of zeros is 0."""


def gradient(term: Term, params: Tensor, start: Tensor, received: Received, layout: Layout) -> Tensor:
    """Return the gradient of ``term`` at ``params`` for clients that received ``start``; zero outside the term's part.

    All terms but the proximal one are about clusters: they are zero for clients that have none yet.
    """
    if isinstance(term, Proximal):
        return penalty(term, params, start, received)
    part, placed = getattr(term, "part", "all"), received.placed.unsqueeze(-1)
    if part == "all":
        return penalty(term, params, start, received) * placed
    where = layout.part(part)
    inside = received._replace(models=received.models[..., where], references=received.references[..., where])
    full = torch.zeros_like(params)
    full[..., where] = penalty(term, params[..., where], start[..., where], inside) * placed
    return full


@singledispatch
def penalty(term: Term, params: Tensor, start: Tensor, received: Received) -> Tensor:
    """Return the gradient of a term on the coordinates of its part."""
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
    """Sum (p_k - [k = c]) / t times the gradient of the cosine s_k over k, where p_k = softmax(s_k / t)."""
    lengths = received.models.norm(dim=-1).clamp_min(TINY)
    own = params.norm(dim=-1, keepdim=True).clamp_min(TINY)
    cosines = params @ received.models.T / (own * lengths)
    chances = torch.softmax(cosines / term.temperature, -1)
    own_row = torch.arange(cosines.shape[-1], device=cosines.device) == received.rows.unsqueeze(-1)
    slope = (chances - own_row.to(chances)) * (term.strength / term.temperature)
    towards: Tensor = (slope / lengths) @ received.models / own
    along: Tensor = (slope * cosines).sum(-1, keepdim=True) * params / own**2
    return towards - along


class HeadInputs:
    """Records the inputs of a module's head in every forward pass."""

    def __init__(self, module: nn.Module, model: Model) -> None:
        name = head_of(module, model.cluster_part)
        if name is None:
            raise UsageError(f"model {model.text!r} has no head with inputs to compare; name a submodule head")
        self._last = torch.empty(0)
        module.get_submodule(name).register_forward_pre_hook(self._record)

    def _record(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._last = inputs[0]

    def take(self) -> Tensor:
        """Return the inputs of the last forward pass, one row for each example, and forget them."""
        last, self._last = self._last, torch.empty(0)
        return last.flatten(1)


class Anchors:
    """The cluster models with which a client is contrasted: frozen, in evaluation mode."""

    def __init__(self, model: Model, like: Tensor) -> None:
        self.model = model
        self.params = like.new_zeros(model.layout.size)
        self.buffers = like.new_zeros(model.layout.buffer_size)
        self.module = model.bind(self.params, self.buffers).eval().requires_grad_(False)
        self.head_inputs: HeadInputs | None = None

    @torch.no_grad()
    def features(self, x: Tensor, received: Received, of: str) -> Tensor:
        """Return the last layer's inputs or outputs under every cluster model, ``(K, examples, features)``."""
        if of == "inputs" and self.head_inputs is None:
            self.head_inputs = HeadInputs(self.module, self.model)
        found = []
        for params, buffers in zip(received.models, received.buffers, strict=True):
            self.params.copy_(params)
            self.buffers.copy_(buffers)
            outputs = self.module(x)
            found.append(outputs if self.head_inputs is None or of == "outputs" else self.head_inputs.take())
        return torch.stack(found)


def check_contrasts(terms: Iterable[Contrast], model: Model) -> None:
    """Refuse to contrast the outputs of a regression: a single output has no direction."""
    if model.target.width == 1 and any(term.of == "outputs" for term in terms):
        raise UsageError("con-rep(of=outputs) compares directions of outputs, and a regression has one; use of=inputs")


def contrast(term: Contrast, own: Tensor, anchors: Tensor, weights: Tensor | None, received: Received) -> Tensor:
    """Return the sum of the term over clients, for features ``own (..., B, F)`` and ``anchors (K, ..., B, F)``.

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
    """Return the mean over examples of values ``(..., B, K)``."""
    return values.mean(-2) if weights is None else (values * weights.unsqueeze(-1)).sum(-2)
