"""Outputs of given models on given examples: evaluation mode, batches of a few hundred, normalisation folded away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from coterie.engine.objective import losses
from coterie.engine.pool import Pool
from coterie.models.layout import Array
from coterie.models.model import Model

CONVOLUTION_BATCH, DENSE_BATCH = 300, 4096


class Verdicts(NamedTuple):
    """Per example: its loss, and the predicted class (or value)."""

    losses: Array
    predictions: Array


class Evaluator:
    """A reusable module for forward passes without gradients."""

    def __init__(self, model: Model, like: Tensor) -> None:
        self.model = model
        self.params = like.new_zeros(model.layout.size)
        self.buffers = like.new_zeros(model.layout.buffer_size)
        self.module = model.bind(self.params, self.buffers).eval().requires_grad_(False)
        self.folded: nn.Module = self.module

    def load(self, params: Tensor, buffers: Tensor) -> None:
        """Evaluate this model from now on."""
        self.params.copy_(params)
        self.buffers.copy_(buffers)
        self.folded = fold(self.module)

    def judge(self, pool: Pool, rows: Array) -> Verdicts:
        """Losses and predictions for these rows of a pool of examples."""
        parts = [verdicts(outputs, y, self.model.classes) for outputs, y in self._batches(pool, rows)]
        return Verdicts(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def outputs(self, pool: Pool, rows: Array) -> tuple[Tensor, Tensor]:
        """The outputs for these rows, and the truth."""
        outputs, truth = zip(*self._batches(pool, rows), strict=True)
        return torch.cat(outputs), torch.cat(truth)

    def _batches(self, pool: Pool, rows: Array) -> Iterator[tuple[Tensor, Tensor]]:
        size = CONVOLUTION_BATCH if self.model.is_convolutional else DENSE_BATCH
        for i in range(0, len(rows), size):
            x, y = pool.take(rows[i : i + size])
            with torch.no_grad():
                outputs = self.folded(x)
            yield outputs, y


def verdicts(outputs: Tensor, truth: Tensor, classes: int | None) -> Verdicts:
    """Losses and predictions from outputs."""
    predicted = outputs.squeeze(-1) if classes is None else outputs.argmax(-1)
    return Verdicts(losses(outputs, truth, classes).cpu().numpy(), predicted.cpu().numpy())


def fold(module: nn.Module) -> nn.Module:
    """A plain sequence with each batch normalisation merged into the convolution before it; others as they are."""
    if type(module) is not nn.Sequential:
        return module
    layers: list[nn.Module] = []
    for layer in module:
        before = layers[-1] if layers else None
        if isinstance(layer, nn.BatchNorm2d) and layer.track_running_stats and isinstance(before, nn.Conv2d):
            layers[-1] = fuse_conv_bn_eval(before, layer)
        else:
            layers.append(layer)
    return nn.Sequential(*layers).eval()
