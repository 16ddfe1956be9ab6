"""Local training on flat vectors: one client at a time, or a group of clients in lockstep, by the same code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.optim.sgd import sgd

from coterie.engine.terms import NOTHING, Anchors, HeadInputs, Received, check_contrasts, contrast, gradient
from coterie.models.dropout import AddressedDropout
from coterie.models.model import Model, Slot
from coterie.protocol.task import SEEN, Contrast, Fit, Term
from coterie.target import Target


def losses(outputs: Tensor, truth: Tensor, target: Target) -> Tensor:
    """Return the loss of every example, for outputs ``(..., C)`` and truth ``(...)``, or ``(..., C)`` of several.

    The loss of several labels or targets is the mean of each one's.
    """
    if target.is_labels:
        return F.binary_cross_entropy_with_logits(outputs, truth, reduction="none").mean(-1)
    if target.columns is not None:
        return ((outputs - truth) ** 2).mean(-1)
    if target.classes is None:
        return (outputs.squeeze(-1) - truth) ** 2
    flat = F.cross_entropy(outputs.flatten(0, -2), truth.flatten(), reduction="none")
    return flat.view(truth.shape)


def mean_loss(outputs: Tensor, truth: Tensor, target: Target) -> Tensor:
    """Return the mean of ``losses`` over one client's minibatch, in one operation."""
    if target.is_labels:
        return F.binary_cross_entropy_with_logits(outputs, truth)
    if target.classes is None:
        return F.mse_loss(outputs if target.columns else outputs.squeeze(-1), truth)
    return F.cross_entropy(outputs, truth)


_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class Optimiser:
    """SGD with momentum, or Adam, on a list of tensors; reset before every client.

    ``first`` are the momenta, which a caller may fill to go on from an earlier pass.
    """

    def __init__(self, fit: Fit, tensors: list[Tensor]) -> None:
        self.fit, self.tensors, self.taken = fit, tensors, 0
        adam = fit.optimizer == "adam"
        self.first = [torch.zeros_like(t) for t in tensors] if adam or fit.momentum else None
        self.second = [torch.zeros_like(t) for t in tensors] if adam else None

    def reset(self) -> Optimiser:
        """Set all state to zero."""
        self.taken = 0
        for tensor in (self.first or []) + (self.second or []):
            tensor.zero_()
        return self

    @torch.no_grad()
    def step(self, gradients: list[Tensor], lr: float, active: Tensor | None = None) -> None:
        """Move the tensors in place; rows with an ``active`` entry of 0 stay where they are."""
        self.taken += 1
        if active is None and self.second is None:
            self._fused_sgd(gradients, lr)
            return
        if self.fit.weight_decay:
            pairs = zip(gradients, self.tensors, strict=True)
            gradients = [g.add(t, alpha=self.fit.weight_decay) for g, t in pairs]
        moves = self._sgd_moves(gradients, active) if self.second is None else self._adam_moves(gradients)
        for tensor, move in zip(self.tensors, moves, strict=True):
            if active is None:
                tensor.sub_(move, alpha=lr)
            else:
                tensor.addcmul_(move, active.view(-1, *[1] * (tensor.dim() - 1)), value=-lr)

    def _fused_sgd(self, gradients: list[Tensor], lr: float) -> None:
        """Apply decay, momentum and step in one sweep over memory; the kernel needs equal strides."""
        pairs = zip(gradients, self.tensors, strict=True)
        same = [g if g.stride() == t.stride() else torch.empty_like(t).copy_(g) for g, t in pairs]
        buffers: list[Tensor | None] = [None] * len(self.tensors) if self.first is None else list(self.first)
        sgd(
            self.tensors,
            same,
            buffers,
            fused=True,
            lr=lr,
            momentum=self.fit.momentum,
            weight_decay=self.fit.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _sgd_moves(self, gradients: list[Tensor], active: Tensor | None) -> list[Tensor]:
        if self.first is None:
            return gradients
        if active is not None and self.fit.keeps is not None:  # clients that have finished keep their momentum
            masks = [active.view(-1, *[1] * (m.dim() - 1)) for m in self.first]
            for m, g, mask in zip(self.first, gradients, masks, strict=True):
                m.mul_(1 + (self.fit.momentum - 1) * mask).addcmul_(g, mask)
            return self.first
        return [m.mul_(self.fit.momentum).add_(g) for m, g in zip(self.first, gradients, strict=True)]

    def _adam_moves(self, gradients: list[Tensor]) -> list[Tensor]:
        assert self.first is not None
        assert self.second is not None
        moves = []
        for first, second, g in zip(self.first, self.second, gradients, strict=True):
            first.lerp_(g, 1 - _BETAS[0])
            second.mul_(_BETAS[1]).addcmul_(g, g, value=1 - _BETAS[1])
            scale = (second / (1 - _BETAS[1] ** self.taken)).sqrt_().add_(_EPSILON)
            moves.append(first / (1 - _BETAS[0] ** self.taken) / scale)
        return moves


class Batch(NamedTuple):
    """A minibatch: ``x (B, ...)`` and ``y (B, ...)`` of one client, or of G clients with a leading dimension G.

    ``weights (G, B)`` sum to 1 over a client's examples (None: plain mean); ``active (G, 1)`` is 0 for a client that
    has finished.
    """

    x: Tensor
    y: Tensor
    weights: Tensor | None = None
    active: Tensor | None = None


class Trainer:
    """Reusable flat parameters, their gradient and a module bound to them.

    With ``group`` None it serves one client at a time. With ``group`` G it serves G at once: every layer runs once
    for all of them (``torch.func.vmap``), which is faster for small dense nets.
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
        self.head_inputs: HeadInputs | None = None
        self.anchors: Anchors | None = None

    def seed_dropout(self, number: int) -> None:
        """Seed every dropout layer, each differently."""
        for name, module in self.module.named_modules():
            if isinstance(module, AddressedDropout):
                module.generator.manual_seed((number + self.model.depths[name]) % 2**63)

    def fit(
        self,
        start: Tensor,
        fit: Fit,
        lr: float,
        batches: Iterable[Batch],
        *,
        received: Received = NOTHING,
        momentum: Tensor | None = None,
    ) -> Tensor:
        """Train from ``start`` on the batches, leave the result in ``params`` and return the mean minibatch loss.

        The terms of the pass read ``received``; ``momentum`` is that of an earlier pass, if it is kept.
        """
        trained = self._prepare(fit.part)
        contrasts = tuple(t for t in fit.terms if isinstance(t, Contrast) and t.of in SEEN)
        if contrasts:
            check_contrasts(contrasts, self.model)
        terms = tuple(t for t in fit.terms if t not in contrasts)
        with torch.no_grad():
            self.params.copy_(start)
        flat = self.grouped and fit.part == "all"
        optimiser = self._optimiser(fit, trained, flat, momentum)
        steps = []
        for batch in batches:
            loss, found = self._differentiate(batch, trained, contrasts, received)
            gradients = [self._flatten(found)] if flat else found
            if terms:
                gradients = self._with_terms(gradients, terms, start, received, trained, flat)
            back = self._ways_back(start, fit, trained, batch.active) if fit.pull else []
            optimiser.step(gradients, lr, batch.active)
            if back:
                self._add(trained, back)
            steps.append((loss, batch.active))
        return _mean(steps)

    def loss_and_gradient(self, start: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return each client's loss on a minibatch at ``start`` and its flat gradient, as a first step has them.

        The gradient is overwritten by the next call.
        """
        trained = self._prepare("all")
        with torch.no_grad():
            self.params.copy_(start)
        loss, found = self._differentiate(batch, trained, (), NOTHING)
        return loss, self._flatten(found)

    def _optimiser(self, fit: Fit, trained: tuple[Slot, ...], flat: bool, momentum: Tensor | None) -> Optimiser:
        """Return the optimiser of this kind of pass, reset or with this momentum; its memory is reused."""
        if fit not in self.optimisers:
            tensors = [self.params] if flat else [self.leaves[slot.name] for slot in trained]
            self.optimisers[fit] = Optimiser(fit, tensors)
        optimiser = self.optimisers[fit].reset()
        if momentum is not None:
            for held, kept in self._momenta(fit, momentum):
                held.copy_(kept)
        return optimiser

    def momentum(self, fit: Fit) -> Tensor:
        """Return the flat momentum with which the last pass of this kind ended, zero outside of its part."""
        found = torch.zeros_like(self.params)
        for held, target in self._momenta(fit, found):
            target.copy_(held)
        return found

    def _momenta(self, fit: Fit, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the momenta of a kind of pass, each with its view of a flat vector."""
        momenta = self.optimisers[fit].first or []
        if self.grouped and fit.part == "all":
            return list(zip(momenta, [flat], strict=True))
        return list(zip(momenta, (slot.view(flat) for slot in self.model.slots_of(fit.part)), strict=True))

    def _prepare(self, part: str) -> tuple[Slot, ...]:
        """Set the trained part to training mode and the frozen rest to evaluation mode; return the trained slots."""
        homes = self.model.homes[part]
        for name, module in self.model.to_training(self.module).named_modules():
            trained = part == "all" or name in homes
            if self.model.cluster_part and isinstance(module, AddressedDropout):
                module.training = module.training and trained
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.training = module.training and trained
                if module.num_batches_tracked is not None:  # or the client before would count in a cumulative mean
                    module.num_batches_tracked.zero_()
        return self.model.slots_of(part)

    def _differentiate(
        self, batch: Batch, trained: tuple[Slot, ...], contrasts: tuple[Contrast, ...], received: Received
    ) -> tuple[Tensor, list[Tensor]]:
        """Return each client's loss and the gradient of each trained tensor; contrasts are in the gradient only."""
        leaves = [self.leaves[slot.name] for slot in trained]
        inputs = torch.empty(0)
        if any(term.of == "inputs" for term in contrasts):
            outputs, inputs = self._outputs_and_inputs(batch.x)
        elif self.grouped:
            outputs = vmap(lambda leaves, x: functional_call(self.module, leaves, (x,)))(self.leaves, batch.x)
        else:
            outputs = self.module(batch.x)
        if batch.weights is None:
            loss = mean_loss(outputs, batch.y, self.model.target)
        else:
            loss = (losses(outputs, batch.y, self.model.target) * batch.weights).sum(-1)
        total = loss.sum()
        for term in contrasts:
            own = inputs if term.of == "inputs" else outputs
            self.anchors = self.anchors or Anchors(self.model, self.params)
            anchors = self.anchors.features(batch.x.flatten(0, int(self.grouped)), received, term.of)
            total = total + contrast(term, own, anchors.view(len(anchors), *own.shape), batch.weights, received)
        return loss.detach(), list(torch.autograd.grad(total, leaves, materialize_grads=True))

    def _outputs_and_inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs, and the inputs of the head."""
        head = self.head_inputs = self.head_inputs or HeadInputs(self.module, self.model)
        if not self.grouped:
            return self.module(x), head.take()
        run = vmap(lambda leaves, part: (functional_call(self.module, leaves, (part,)), head.take()))
        outputs, inputs = run(self.leaves, x)
        return outputs, inputs

    def _flatten(self, found: list[Tensor]) -> Tensor:
        """Return all gradients as one array: the optimiser of a small group sweeps once, not once for each layer."""
        torch._foreach_copy_(self.gradients, found)
        return self.gradient

    @torch.no_grad()
    def _with_terms(
        self,
        gradients: list[Tensor],
        terms: tuple[Term, ...],
        start: Tensor,
        received: Received,
        trained: tuple[Slot, ...],
        flat: bool,
    ) -> list[Tensor]:
        """Return the gradients with those of the penalty terms added."""
        for term in terms:
            extra = gradient(term, self.params, start, received, self.model.layout)
            parts = [extra] if flat else [slot.view(extra) for slot in trained]
            gradients = [g + p for g, p in zip(gradients, parts, strict=True)]
        return gradients

    @torch.no_grad()
    def _ways_back(self, start: Tensor, fit: Fit, trained: tuple[Slot, ...], active: Tensor | None) -> list[Tensor]:
        """Return the share ``pull`` of the way back to the start, zero for clients that have finished."""
        ways = [(slot.view(start) - slot.view(self.params)) * fit.pull for slot in trained]
        return ways if active is None else [way * active.view(-1, *[1] * (way.dim() - 1)) for way in ways]

    @torch.no_grad()
    def _add(self, trained: tuple[Slot, ...], ways: list[Tensor]) -> None:
        for slot, way in zip(trained, ways, strict=True):
            slot.view(self.params).add_(way)


def _mean(steps: list[tuple[Tensor, Tensor | None]]) -> Tensor:
    """Return the mean loss of each client over the minibatches in which it was active."""
    losses_seen = torch.stack([loss for loss, _ in steps])
    masks = [active.squeeze(-1) for _, active in steps if active is not None]
    if not masks:
        return losses_seen.mean(0)
    active = torch.stack(masks)
    return (losses_seen * active).sum(0) / active.sum(0)
