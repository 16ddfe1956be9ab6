"""Penalties added to the local objective, each as its gradient at the current parameters.

They are functions of flat parameters ``(P,)`` or ``(G, P)``, so one definition serves one client and many in lockstep.
Closed forms are added to the gradient directly: nothing can be detached by accident. A contrast of representations
depends on the minibatch and is differentiated with the loss instead (``engine.contrast``).
"""

from __future__ import annotations

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.models.layout import Layout
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
