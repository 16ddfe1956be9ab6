"""Local training on flat vectors: one client at a time, or a group of clients in lockstep, by the same code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coterie.engine.objective import losses, mean_loss
from coterie.engine.optimiser import Optimiser
from coterie.engine.terms import gradient
from coterie.models.dropout import AddressedDropout
from coterie.models.model import Model, Slot
from coterie.protocol.task import Fit


class Batch(NamedTuple):
    """A minibatch: ``x (B, ...)`` and ``y (B,)`` of one client, or of G clients with a leading G.

    ``weights (G, B)`` sum to 1 over a client's examples (None: plain mean); ``active (G, 1)`` is 0 for the finished.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None = None
    active: Tensor | None = None


class Trainer:
    """A reusable desk: flat parameters, their gradient and a module bound to them.

    With ``group`` None it serves one client at a time. With ``group`` G it serves G at once: every layer runs once
    for all of them (``torch.func.vmap``), which pays for small dense nets.
    """

    def __init__(self, model: Model, like: Tensor, group: int | None = None) -> None:
        lead = () if group is None else (group,)
        self.model = model
        self.params = like.new_zeros(*lead, model.layout.size)
        self.buffers = like.new_zeros(model.layout.buffer_size)
        self.gradient = torch.zeros_like(self.params)
        self.module = model.bind(self.params if group is None else self.params[0], self.buffers)
        named = dict(self.module.named_parameters())
        self.leaves: dict[str, Tensor] = {
            s.name: named[s.name] if group is None else s.view(self.params).requires_grad_() for s in model.slots
        }
        self.gradients = [s.view(self.gradient) for s in model.slots]
        self.grouped = group is not None
        self.optimisers: dict[Fit, Optimiser] = {}

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of the current parameters, each client's for its own examples."""
        if self.grouped:
            batched: Tensor = vmap(lambda leaves, part: functional_call(self.module, leaves, (part,)))(self.leaves, x)
            return batched
        single: Tensor = self.module(x)
        return single

    def seed_dropout(self, number: int) -> None:
        """Give every dropout layer its address."""
        for layer, module in enumerate(self.module.modules()):
            if isinstance(module, AddressedDropout):
                module.generator.manual_seed((number + layer) % 2**63)

    def fit(self, start: Tensor, fit: Fit, lr: float, batches: Iterable[Batch]) -> Tensor:
        """Train from ``start`` on the batches; the result is in ``params``. Returns the mean minibatch loss."""
        trained = self._prepare(fit.part)
        with torch.no_grad():
            self.params.copy_(start)
        flat = self.grouped and fit.part == "all"
        optimiser = self._optimiser(fit, trained, flat)
        seen = []
        for batch in batches:
            loss, found = self._differentiate(batch, trained)
            gradients = [self._flatten(found)] if flat else found
            if fit.terms:
                gradients = self._with_terms(gradients, fit, start, trained, flat)
            optimiser.step(gradients, lr, batch.active)
            seen.append((loss, batch.active))
        return _mean(seen)

    def _optimiser(self, fit: Fit, trained: tuple[Slot, ...], flat: bool) -> Optimiser:
        """The optimiser of this kind of pass, its memory reused from client to client."""
        if fit not in self.optimisers:
            tensors = [self.params] if flat else [self.leaves[slot.name] for slot in trained]
            self.optimisers[fit] = Optimiser(fit, tensors)
        return self.optimisers[fit].reset()

    def _prepare(self, part: str) -> tuple[Slot, ...]:
        """Train mode for the modules that hold the trained part, eval mode for the frozen rest."""
        trained = self.model.slots_of(part)
        homes = {slot.name.rpartition(".")[0] for slot in trained}
        self.module.train()
        for name, module in self.module.named_modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.train(part == "all" or name in homes)
                if module.num_batches_tracked is not None:  # else the client before would weigh in a cumulative mean
                    module.num_batches_tracked.zero_()
        return trained

    def _differentiate(self, batch: Batch, trained: tuple[Slot, ...]) -> tuple[Tensor, list[Tensor]]:
        """Each client's loss, and the gradient of each trained tensor."""
        outputs, leaves = self.outputs(batch.x), [self.leaves[slot.name] for slot in trained]
        if batch.weights is None:
            loss = mean_loss(outputs, batch.y, self.model.classes)
            return loss.detach(), list(torch.autograd.grad(loss, leaves))
        each = (losses(outputs, batch.y, self.model.classes) * batch.weights).sum(-1)
        return each.detach(), list(torch.autograd.grad(each.sum(), leaves))

    def _flatten(self, found: list[Tensor]) -> Tensor:
        """All gradients as one array: one sweep of a small group's optimiser instead of one for each layer."""
        torch._foreach_copy_(self.gradients, found)
        return self.gradient

    @torch.no_grad()
    def _with_terms(
        self, gradients: list[Tensor], fit: Fit, start: Tensor, trained: tuple[Slot, ...], flat: bool
    ) -> list[Tensor]:
        """The gradients with those of the penalty terms added."""
        for term in fit.terms:
            extra = gradient(term, self.params, start)
            parts = [extra] if flat else [slot.view(extra) for slot in trained]
            gradients = [g + p for g, p in zip(gradients, parts, strict=True)]
        return gradients


def _mean(seen: list[tuple[Tensor, Tensor | None]]) -> Tensor:
    """The mean loss of each client over the minibatches in which it was active."""
    losses_seen = torch.stack([loss for loss, _ in seen])
    masks = [active.squeeze(-1) for _, active in seen if active is not None]
    if not masks:
        return losses_seen.mean(0)
    active = torch.stack(masks)
    return (losses_seen * active).sum(0) / active.sum(0)
