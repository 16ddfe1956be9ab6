"""Local optimisers on flat vectors, for one client ``(P,)`` or many ``(G, P)`` at once."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.protocol.task import Fit

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class Optimiser:
    """SGD with momentum, or Adam, as torch defines them; state is zero at the start of every fit."""

    def __init__(self, fit: Fit, params: Tensor) -> None:
        self.fit = fit
        self.taken = 0
        self.first = torch.zeros_like(params) if fit.optimizer == "adam" or fit.momentum else None
        self.second = torch.zeros_like(params) if fit.optimizer == "adam" else None

    def step(self, params: Tensor, gradient: Tensor, lr: float, active: Tensor | None = None) -> None:
        """Move ``params`` in place; rows whose ``active`` entry is 0 stay where they are."""
        self.taken += 1
        move = self._adam(gradient) if self.second is not None else self._sgd(gradient)
        if active is None:
            params.sub_(move, alpha=lr)
        else:
            params.addcmul_(move, active, value=-lr)

    def _sgd(self, gradient: Tensor) -> Tensor:
        if self.first is None:
            return gradient
        return self.first.mul_(self.fit.momentum).add_(gradient)

    def _adam(self, gradient: Tensor) -> Tensor:
        assert self.first is not None
        assert self.second is not None
        self.first.lerp_(gradient, 1 - _BETAS[0])
        self.second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        scale = (self.second / (1 - _BETAS[1] ** self.taken)).sqrt_().add_(_EPSILON)
        return self.first / (1 - _BETAS[0] ** self.taken) / scale
