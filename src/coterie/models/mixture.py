"""Several networks as one: how their outputs are mixed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.models.layout import MIXES


def mix_outputs(outputs: Sequence[Tensor], rule: str, classes: int | None) -> Tensor:
    """The outputs of an ensemble whose members gave these.

    ``logits`` is their sum; ``softmax`` the logarithm of the mean of their softmaxes, every member weighing the same;
    ``majority`` the logarithm of the shares of the members' votes, and of one more that goes to all classes alike, so
    that no loss is infinite. Predictions of a real target are averaged under any rule.

    >>> sure, unsure = torch.tensor([[8.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> mix_outputs([sure, unsure], "softmax", 2).exp().sum().round(decimals=4).item()
    1.0
    """
    assert rule in MIXES, rule
    together = torch.stack(list(outputs))
    if classes is None:
        return together.mean(0)
    if rule == "logits":
        return together.sum(0)
    if rule == "majority":
        votes = F.one_hot(together.argmax(-1), classes).sum(0).to(together)
        return torch.log((votes + 1 / classes) / (len(together) + 1))
    return torch.log_softmax(together, -1).logsumexp(0) - math.log(len(together))


class Mixture(nn.Module):
    """An ensemble as a network of its own."""

    def __init__(self, members: Sequence[nn.Module], rule: str, classes: int | None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.rule, self.classes = rule, classes

    def forward(self, x: Tensor) -> Tensor:
        """The members' mixed outputs."""
        return mix_outputs([member(x) for member in self.members], self.rule, self.classes)
