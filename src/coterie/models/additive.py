"""Additive networks: the outputs of a global half and of a cluster half, summed."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from coterie.errors import UsageError
from coterie.models.model import Model


class Additive(nn.Module):
    """The sum of two networks' outputs."""

    def __init__(self, common: nn.Module, cluster: nn.Module) -> None:
        super().__init__()
        self.common = common
        self.cluster = cluster

    def forward(self, x: Tensor) -> Tensor:
        """``f(x; G) + h(x; T)``."""
        total: Tensor = self.common(x) + self.cluster(x)
        return total


def additive(model: Model) -> Model:
    """The same architecture twice: a half for everyone and one for the cluster (thesis eq. 7.1).

    The vectors are twice as long; the global half comes first and starts where the plain model would. The part names
    head, body and linear mean the cluster half's, so that what clusters parameters looks at that half.

    >>> from coterie.models.zoo import build_model
    >>> layout = additive(build_model("linear", (3,), None)).layout
    >>> layout.part("global"), layout.part("cluster"), layout.part("head_weight")
    (slice(0, 4, None), slice(4, 8, None), slice(4, 7, None))
    """
    if model.half:
        raise UsageError(f"model {model.text!r} is a sum of two halves already; add cam once")
    return replace(model, build=lambda: Additive(model.build(), model.build()), half="cluster")
