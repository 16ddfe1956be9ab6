"""Models on examples: losses and predictions of one model, and the mean losses of many models for many clients."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from coterie.engine.choice import ExampleLosses
from coterie.engine.client_columns import Predicted, segment_mean
from coterie.engine.local_training import half_of
from coterie.engine.plan import Workers
from coterie.engine.pool import Pool
from coterie.engine.trainer import losses
from coterie.errors import UsageError
from coterie.models.model import Model
from coterie.protocol.report import Sample
from coterie.protocol.task import Fit
from coterie.seeding import Key
from coterie.target import Target
from coterie.typing import Array

CONVOLUTION_BATCH, DENSE_BATCH = 300, 4096
"""Examples that one forward pass takes."""


class Evaluator:
    """A reusable module for forward passes without gradients."""

    def __init__(self, model: Model, like: Tensor) -> None:
        self.model = model
        self.params = like.new_zeros(model.layout.size)
        self.buffers = like.new_zeros(model.layout.buffer_size)
        self.module = model.bind(self.params, self.buffers).eval().requires_grad_(False)

    @torch.no_grad()
    def outputs(self, params: Tensor, buffers: Tensor, pool: Pool, rows: Array) -> tuple[Tensor, Tensor]:
        """Return the outputs of a model for these rows of a pool, and the truth."""
        self.params.copy_(params)
        self.buffers.copy_(buffers)
        folded = fold(self.module)
        size = CONVOLUTION_BATCH if self.model.is_convolutional else DENSE_BATCH
        outputs, truth = [], []
        for i in range(0, len(rows), size):
            x, y = pool.take(rows[i : i + size])
            outputs.append(folded(x))
            truth.append(y)
        return torch.cat(outputs), torch.cat(truth)


def predicted(outputs: Tensor, truth: Tensor, target: Target) -> Predicted:
    """Return losses and predictions from outputs."""
    return Predicted(losses(outputs, truth, target).cpu().numpy(), predictions(outputs, target).cpu().numpy())


def predictions(outputs: Tensor, target: Target) -> Tensor:
    """Return what outputs predict: classes, values, or of several labels which are 1.

    >>> predictions(torch.tensor([[0.5, -2.0]]), Target(2, 2)).tolist()
    [[1, 0]]
    """
    if target.is_labels:
        return (outputs > 0).long()
    if target.classes is None:
        return outputs if target.columns else outputs.squeeze(-1)
    return outputs.argmax(-1)


def fold(module: nn.Module) -> nn.Module:
    """Merge each batch normalisation of a plain sequence into the convolution before it; leave other modules alone."""
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


def bound(found: Predicted, truth: Array, kind: str, target: Target) -> Array:
    """Return losses in [0, 1]: whether a prediction is wrong, or the loss clipped, cross entropy in units of a guess.

    Of several labels it is the share of wrong ones.

    >>> found = Predicted(np.array([0.5, np.nan, 9.0]), np.array([2, 0, 1]))
    >>> bound(found, np.array([2, 0, 0]), "zero-one", Target(3)).tolist()
    [0.0, 0.0, 1.0]
    >>> bound(Predicted(np.array([0.25, np.nan, 9.0]), np.zeros(3)), np.zeros(3), "clipped", Target()).tolist()
    [0.25, 1.0, 1.0]
    """
    if kind == "zero-one":
        wrong: Array = (found.predictions != truth).astype(np.float64)
        return wrong if target.columns is None else wrong.mean(axis=1)
    unit = 1.0 if target.classes is None else log(max(target.classes, 2))
    return np.where(found.losses < unit, found.losses / unit, 1.0)


RowsOf = Callable[[Array], tuple[Array, Array]]
"""``clients -> (rows, offsets)``: the rows of the pool on which clients evaluate, and where each client's begin."""


class LossTable(NamedTuple):
    """Each client's mean loss under each model, and the mean squared deviations from it, ``(r, K)`` each."""

    losses: Array
    spreads: Array


ModelLosses = Callable[[Array, Array], Array]
"""``(models, rows) -> losses``: the losses of several models on each of these rows of the pool, ``(models, rows)``."""

TABLE_PART = 1 << 22
"""About how many losses of single examples are held at a time."""


def loss_table(
    losses: ModelLosses, models: int, clients: Array, rows_of: RowsOf, workers: Workers, *, spreads: bool = False
) -> LossTable:
    """Evaluate several models at a time on the rows of many clients; without ``spreads`` those are not computed."""
    shards = [s for s in np.array_split(np.arange(len(clients)), workers.count) if len(s)]
    table = LossTable(*np.zeros((2, len(clients), models)))

    def evaluate(job: tuple[Array, Array, Array, Array]) -> None:
        shard, rows, offsets, some = job
        for model, own in zip(some, losses(some, rows), strict=True):
            if spreads:
                table.losses[shard, model], table.spreads[shard, model] = mean_and_spread(own, offsets)
            else:
                table.losses[shard, model] = segment_mean(own, offsets)

    seen = [(shard, *rows_of(clients[shard])) for shard in shards]
    workers.map(evaluate, [(*each, some) for each in seen for some in _some_models(models, len(each[1]))])
    return table


def _some_models(models: int, rows: int) -> list[Array]:
    """Return the models, a few at a time, so that their losses on these rows fit into memory."""
    return np.array_split(np.arange(models), -(-models // max(1, TABLE_PART // max(1, rows))))


def mean_and_spread(values: Array, offsets: Array) -> tuple[Array, Array]:
    """Return the mean of each segment ``offsets[i]:offsets[i+1]``, and the mean squared deviation from it.

    >>> [column.tolist() for column in mean_and_spread(np.array([1.0, 3.0, 7.0]), np.array([0, 2, 3]))]
    [[2.0, 7.0], [1.0, 0.0]]
    """
    mean = segment_mean(values, offsets)
    with np.errstate(invalid="ignore", over="ignore"):
        return mean, segment_mean((values - np.repeat(mean, np.diff(offsets))) ** 2, offsets)


def own_losses(
    table: LossTable, rows: Array, losses: ExampleLosses, clients: Array, rows_of: RowsOf, workers: Workers
) -> Array:
    """Return each client's mean loss under the model that its row names, which need not be in the table."""
    models = table.losses.shape[1]

    def own(position: int) -> float:
        if rows[position] < models:
            return float(table.losses[position, rows[position]])
        where, offsets = rows_of(clients[position : position + 1])
        return float(segment_mean(losses(int(rows[position]), where), offsets)[0])

    return np.array(workers.map(own, range(len(clients))))


def differences(table: LossTable, own: Array) -> LossTable:
    """Replace every loss by its absolute difference from the client's own loss.

    >>> differences(LossTable(np.array([[1.0, 4.0]]), np.zeros((1, 2))), np.array([3.0])).losses.tolist()
    [[2.0, 1.0]]
    """
    with np.errstate(invalid="ignore"):
        return table._replace(losses=np.abs(table.losses - own[:, None]))


def rows_of_half(half: int, pool: Pool, names: tuple[str, ...], key: Key) -> RowsOf:
    """Select the half of each client's data that a pass on the other half, under the same key, does not see."""

    def rows_of(clients: Array) -> tuple[Array, Array]:
        sizes, fit = pool.sizes[clients], Fit(half=half)
        drawn = [half_of(int(n), fit, key.generator(names[c], "halves")) for c, n in zip(clients, sizes, strict=True)]
        parts = [part + pool.offsets[c] for c, part in zip(clients, drawn, strict=True)]
        return np.concatenate(parts), np.cumsum([0, *map(len, parts)])

    return rows_of


def rows_of_sample(sample: Sample, pool: Pool, names: tuple[str, ...], key: Key) -> RowsOf:
    """Select a sample of each client's data, in the order drawn at its address; refuse clients that have none of it."""

    def rows_of(clients: Array) -> tuple[Array, Array]:
        sizes = pool.sizes[clients]
        if sizes.min() <= sample.begin:
            few = clients[int(sizes.argmin())]
            raise UsageError(
                f"client {names[few]!r} has {pool.sizes[few]} train examples, and the sample begins after "
                f"{sample.begin}; ask only clients that have more"
            )
        orders = [pool.shuffled(c, key.generator(names[c], "sample")) for c in clients]
        parts = [order[sample.begin : sample.end] for order in orders]
        return np.concatenate(parts), np.concatenate([[0], np.cumsum(sample.count(sizes))])

    return rows_of
