"""Memory that is used again must never be memory that somebody still sees."""

import numpy as np
import torch

from coterie.engine.pool import SpareBlock

LIMIT = 10_000


def take(spare: SpareBlock, *shape: int, dtype=np.float32):
    return spare.take(shape, dtype, LIMIT)


def test_a_dropped_array_is_used_again():
    spare = SpareBlock()
    place = take(spare, 4, 5).ctypes.data
    assert take(spare, 5, 4).ctypes.data == place
    assert take(spare, 2, 2, dtype=np.float64).ctypes.data == place


def test_an_array_in_use_is_left_alone():
    spare = SpareBlock()
    first = take(spare, 4, 5)
    first[:] = 1
    take(spare, 4, 5)[:] = 2
    assert (first == 1).all()


def test_whatever_is_cut_from_it_keeps_it():
    spare = SpareBlock()
    views = []
    for cut in (lambda a: a[1], lambda a: a[:, 2:3], lambda a: a.T, lambda a: torch.from_numpy(a[1])[2:]):
        array = take(spare, 4, 5)
        array[:] = 1
        views.append(cut(array))
        del array
        take(spare, 4, 5)[:] = 2
    assert all(bool((view == 1).all()) for view in views)


def test_the_larger_of_two_blocks_is_kept():
    spare = SpareBlock()
    small, large = take(spare, 2), take(spare, 100)
    place = large.ctypes.data
    del large, small
    assert take(spare, 100).ctypes.data == place


def test_nothing_and_too_much_are_not_kept():
    spare = SpareBlock()
    assert take(spare, 0, 5).shape == (0, 5)
    assert spare.take((100, 100), np.float64, LIMIT).shape == (100, 100)
    assert spare._spare is None
