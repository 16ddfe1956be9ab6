"""Dropout by address: layers that draw from a generator of their own, which is seeded for each client and pass."""

from __future__ import annotations

import torch
from torch import nn

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class AddressedDropout(nn.Module):
    """Element-wise dropout that draws from its ``generator``, never from torch's global one."""

    def __init__(self, p: float, channels: bool = False) -> None:
        super().__init__()
        self.p = p
        self.channels = channels
        self.generator = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero entries (or whole channels) with probability p and scale the rest by 1/(1-p)."""
        if not self.training or self.p == 0:
            return x
        shape = x.shape[:2] if self.channels else x.shape
        keep = torch.rand(shape, generator=self.generator) >= self.p
        keep = keep.reshape(*shape, *[1] * (x.dim() - len(shape))).to(x)
        return x * keep / (1 - self.p)


def address_dropout(module: nn.Module) -> nn.Module:
    """Replace torch's dropout layers by addressed ones, in place; refuse alpha dropout."""
    for name, child in module.named_children():
        if isinstance(child, (nn.AlphaDropout, nn.FeatureAlphaDropout)):
            raise NotImplementedError(f"{type(child).__name__} draws from a global generator; use nn.Dropout")
        if isinstance(child, _DROPOUT):
            layer = AddressedDropout(child.p, channels=not isinstance(child, nn.Dropout))
            setattr(module, name, layer.train(child.training))
        else:
            address_dropout(child)
    return module
