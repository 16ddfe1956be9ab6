"""Contrast of representations: the last layer's inputs, or outputs, under the trained model and each cluster model.

It depends on the minibatch, so it is differentiated together with the loss (thesis eq. 4.4). The cluster models are
fixed: they run in evaluation mode and get no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.engine.terms import Received
from coterie.errors import UsageError
from coterie.models.model import Model, head_of
from coterie.protocol.task import Contrast


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
