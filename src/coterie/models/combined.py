"""Networks made of several: the sum of two, and mixtures of many outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.errors import UsageError
from coterie.models.layout import MIXES
from coterie.models.model import Model
from coterie.target import Target


class Additive(nn.Module):
    """The sum of two networks' outputs."""

    def __init__(self, common: nn.Module, cluster: nn.Module) -> None:
        super().__init__()
        self.common = common
        self.cluster = cluster

    def forward(self, x: Tensor) -> Tensor:
        """Return ``f(x; G) + h(x; T)``."""
        total: Tensor = self.common(x) + self.cluster(x)
        return total


def additive(model: Model) -> Model:
    """Return the sum of two networks of one architecture: a global part and a cluster part (thesis eq. 7.1).

    The vectors are twice as long; the global part comes first and starts where the plain model would. The parts head,
    body and linear are of the cluster part, so that rules that cluster parameters look at it alone.

    >>> from coterie.models.zoo import build_model
    >>> layout = additive(build_model("linear", (3,), None)).layout
    >>> layout.part("global"), layout.part("cluster"), layout.part("head_weight")
    (slice(0, 4, None), slice(4, 8, None), slice(4, 7, None))
    """
    if model.cluster_part:
        raise UsageError(f"model {model.text!r} is already a sum of two parts; add cam once")

    def half() -> nn.Module:
        built = model.build()
        return built if built.training else built.train()  # or its frozen submodules would rest in the sum alone

    return replace(model, build=lambda: Additive(half(), half()), cluster_part="cluster")


def mix_outputs(outputs: Sequence[Tensor], rule: str, target: Target) -> Tensor:
    """Return the outputs of an ensemble from those of its members.

    ``logits`` is their sum; ``softmax`` the logarithm of the mean of their softmaxes, with equal weights;
    ``majority`` the logarithm of the shares of the members' votes and of one more vote, divided equally among the
    classes, so that no loss is infinite. Of several labels each is mixed by itself, as two classes. Predictions of
    real targets are averaged under any rule.

    >>> sure, unsure = torch.tensor([[8.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> mix_outputs([sure, unsure], "softmax", Target(2)).exp().sum().round(decimals=4).item()
    1.0
    """
    assert rule in MIXES, rule
    together = torch.stack(list(outputs))
    classes = target.classes
    if classes is None:
        return together.mean(0)
    if rule == "logits":
        return together.sum(0)
    if target.is_labels:
        votes = (together > 0).sum(0).to(together)
        yes, no = F.logsigmoid(together).logsumexp(0), F.logsigmoid(-together).logsumexp(0)
        return torch.log((votes + 1 / 2) / (len(together) - votes + 1 / 2)) if rule == "majority" else yes - no
    if rule == "majority":
        votes = F.one_hot(together.argmax(-1), classes).sum(0).to(together)
        return torch.log((votes + 1 / classes) / (len(together) + 1))
    return torch.log_softmax(together, -1).logsumexp(0) - math.log(len(together))


class Mixture(nn.Module):
    """An ensemble as one network."""

    def __init__(self, members: Sequence[nn.Module], rule: str, target: Target) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.rule, self.target = rule, target

    def forward(self, x: Tensor) -> Tensor:
        """Return the members' mixed outputs."""
        return mix_outputs([member(x) for member in self.members], self.rule, self.target)
