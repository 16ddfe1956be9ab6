"""Local optimisers, as torch defines them, for one client's tensors or for many clients' rows at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from coterie.protocol.task import Fit

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class Optimiser:
    """SGD with momentum, or Adam, on a list of tensors; ``reset`` before every client: no state is carried over.

    Unless it is given back what it had: ``first`` are the momenta.
    """

    def __init__(self, fit: Fit, tensors: list[Tensor]) -> None:
        self.fit, self.tensors, self.taken = fit, tensors, 0
        adam = fit.optimizer == "adam"
        self.first = [torch.zeros_like(t) for t in tensors] if adam or fit.momentum else None
        self.second = [torch.zeros_like(t) for t in tensors] if adam else None

    def reset(self) -> Optimiser:
        """All state to zero."""
        self.taken = 0
        for tensor in (self.first or []) + (self.second or []):
            tensor.zero_()
        return self

    @torch.no_grad()
    def step(self, gradients: list[Tensor], lr: float, active: Tensor | None = None) -> None:
        """Move the tensors in place; rows whose ``active`` entry is 0 stay where they are."""
        self.taken += 1
        if active is None and self.second is None:
            self._fused_sgd(gradients, lr)
            return
        moves = self._sgd_moves(gradients, active) if self.second is None else self._adam_moves(gradients)
        for tensor, move in zip(self.tensors, moves, strict=True):
            if active is None:
                tensor.sub_(move, alpha=lr)
            else:
                tensor.addcmul_(move, active.view(-1, *[1] * (tensor.dim() - 1)), value=-lr)

    def _fused_sgd(self, gradients: list[Tensor], lr: float) -> None:
        """Decay, momentum and step in one sweep over memory; the kernel goes by position, so strides must agree."""
        same = [g if g.stride() == t.stride() else torch.empty_like(t).copy_(g) for g, t in self._pairs(gradients)]
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

    def _pairs(self, gradients: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        return list(zip(gradients, self.tensors, strict=True))

    def _decayed(self, gradients: list[Tensor]) -> list[Tensor]:
        if not self.fit.weight_decay:
            return gradients
        return [g.add(t, alpha=self.fit.weight_decay) for g, t in self._pairs(gradients)]

    def _sgd_moves(self, gradients: list[Tensor], active: Tensor | None) -> list[Tensor]:
        decayed = self._decayed(gradients)
        if self.first is None:
            return decayed
        if active is not None and self.fit.keeps is not None:  # those who have finished keep what they ended with
            masks = [active.view(-1, *[1] * (m.dim() - 1)) for m in self.first]
            for m, g, mask in zip(self.first, decayed, masks, strict=True):
                m.mul_(1 + (self.fit.momentum - 1) * mask).addcmul_(g, mask)
            return self.first
        return [m.mul_(self.fit.momentum).add_(g) for m, g in zip(self.first, decayed, strict=True)]

    def _adam_moves(self, gradients: list[Tensor]) -> list[Tensor]:
        assert self.first is not None
        assert self.second is not None
        moves = []
        for first, second, gradient in zip(self.first, self.second, self._decayed(gradients), strict=True):
            first.lerp_(gradient, 1 - _BETAS[0])
            second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
            scale = (second / (1 - _BETAS[1] ** self.taken)).sqrt_().add_(_EPSILON)
            moves.append(first / (1 - _BETAS[0] ** self.taken) / scale)
        return moves
