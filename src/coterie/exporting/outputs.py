"""What the outputs of a network mean, and a network that answers in these terms: probabilities, or numbers in units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.data import Schema
from coterie.data.tables.features import Number
from coterie.target import Target

CLASSES, LABELS, NUMBERS = "classes", "labels", "numbers"
"""The kinds of answers: the probability of each class, or of each label, or numbers."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The meaning of a network's outputs.

    kind   ``classes``: one of them is right; ``labels``: each may be; ``numbers``: in the units of the table
    names  the classes, or the columns that are predicted
    means  of targets that were standardised: 0 of the network is this
    stds   and 1 is this more
    """

    kind: str
    names: tuple[str, ...]
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()

    def as_table(self) -> dict[str, Any]:
        """Return the kind and the names, for JSON; units are part of the exported network."""
        return {"kind": self.kind, "names": list(self.names)}


def outputs_of(target: Target, schema: Schema | None = None, class_names: Sequence[str] = ()) -> Outputs:
    """Return what outputs mean: by the schema of tables, or by names of classes; numbers stand for unknown names.

    >>> outputs_of(Target(2)).names, outputs_of(Target()).names
    (('0', '1'), ('target',))
    """
    names = tuple(class_names) or tuple(map(str, range(target.width)))
    if target.classes is not None:
        known = names if schema is None else schema.class_names
        return Outputs(kind=LABELS if target.is_labels else CLASSES, names=known)
    if schema is None:
        return Outputs(kind=NUMBERS, names=names if target.columns else ("target",))
    targets = [schema.target] if schema.target is not None else schema.outputs
    numbers = [each for each in targets if isinstance(each, Number)]
    means, stds = tuple(each.mean for each in numbers), tuple(each.std for each in numbers)
    return Outputs(kind=NUMBERS, names=schema.labels, means=means, stds=stds)


class Answering(nn.Module):
    """A network whose outputs are answers: probabilities, or numbers in the units of the table."""

    means: Tensor
    stds: Tensor

    def __init__(self, network: nn.Module, outputs: Outputs) -> None:
        super().__init__()
        self.network, self.kind, self.scaled = network, outputs.kind, bool(outputs.stds)
        if self.scaled:
            self.register_buffer("means", torch.tensor(outputs.means, dtype=torch.float32))
            self.register_buffer("stds", torch.tensor(outputs.stds, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Return the answers, a row for each example."""
        found: Tensor = self.network(x)
        if self.kind == CLASSES:
            return torch.softmax(found, 1)
        if self.kind == LABELS:
            return torch.sigmoid(found)
        return found * self.stds + self.means if self.scaled else found


def answering(network: nn.Module, outputs: Outputs) -> nn.Module:
    """Return a network that answers, in evaluation mode."""
    return Answering(network, outputs).eval()
