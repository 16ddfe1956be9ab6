"""What a frozen trunk gives for every example, computed once: training and evaluation then run the rest alone."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from threading import get_ident

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data.array_memory import allocate, release
from coterie.data.federated import Federated, Split
from coterie.engine.plan import Workers
from coterie.engine.pool import Pool
from coterie.models.model import Model
from coterie.models.trunk import Rest, rest_of
from coterie.terminal import warn_once

MOST = 1 << 32
"""Bytes of features that are always stored, in a mapped file if they are many."""

TIMES = 4
"""More bytes than ``MOST`` are stored if they are at most this many times those of the examples."""

BLOCK = 300
"""Examples of one client that a trunk takes at a time: the same wherever the client is, and so are the features."""


def learner_of(model: Model, data: Federated) -> Model:
    """Return the network that is trained on features of these data, or the model itself if none are stored."""
    rest = rest_of(model)
    if rest is None:
        return model
    splits = (split for split in (data.train, data.test, data.validation) if split is not None)
    needed, times = 4 * prod(rest.shape) * sum(len(s.y) for s in splits), prod(rest.shape) / prod(model.shape)
    if needed <= MOST or times <= TIMES:
        return rest
    warn_once(
        f"the features of the frozen part of model {model.text!r} would take {needed / 1e9:.1f} GB, {times:.0f} times "
        "the examples: they are computed anew in every step; end the frozen part with a pooling layer"
    )
    return model


def with_features(split: Split, rest: Rest, like: Tensor, workers: Workers) -> Split:
    """Return the split with features in the place of its examples, in the precision of ``like``."""
    pool, trunks = Pool(split, like), dict[int, nn.Module]()
    found = allocate((len(split.y), *rest.shape), np.dtype(str(like.dtype).removeprefix("torch.")))

    @torch.no_grad()
    def fill(part: range) -> None:
        if get_ident() not in trunks:  # a module of a user may keep what it computes: one for each thread
            trunks[get_ident()] = rest.trunk(like)
        features = trunks[get_ident()](pool.take(np.array(part))[0])
        torch.from_numpy(found[part.start : part.stop]).copy_(features)
        release(found)

    workers.map(fill, [part for first, last in _ranges(split) for part in _blocks(first, last)])
    return replace(split, x=found)


def _ranges(split: Split) -> list[tuple[int, int]]:
    return list(zip(split.offsets[:-1].tolist(), split.offsets[1:].tolist(), strict=True))


def _blocks(first: int, last: int) -> list[range]:
    """Return the rows of one client, ``BLOCK`` at a time.

    >>> _blocks(100, 450)
    [range(100, 400), range(400, 450)]
    """
    return [range(start, min(start + BLOCK, last)) for start in range(first, last, BLOCK)]
