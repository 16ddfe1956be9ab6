"""Memory that is used again must never be memory that somebody still sees."""

import numpy as np
import torch

from coterie.engine.pool import Shelf

LIMIT = 10_000


def take(shelf: Shelf, *shape: int, dtype=np.float32):
    return shelf.take(shape, dtype, LIMIT)


def test_a_dropped_array_is_used_again():
    shelf = Shelf()
    place = take(shelf, 4, 5).ctypes.data
    assert take(shelf, 5, 4).ctypes.data == place
    assert take(shelf, 2, 2, dtype=np.float64).ctypes.data == place


def test_an_array_in_use_is_left_alone():
    shelf = Shelf()
    first = take(shelf, 4, 5)
    first[:] = 1
    take(shelf, 4, 5)[:] = 2
    assert (first == 1).all()


def test_whatever_is_cut_from_it_keeps_it():
    shelf = Shelf()
    views = []
    for cut in (lambda a: a[1], lambda a: a[:, 2:3], lambda a: a.T, lambda a: torch.from_numpy(a[1])[2:]):
        array = take(shelf, 4, 5)
        array[:] = 1
        views.append(cut(array))
        del array
        take(shelf, 4, 5)[:] = 2
    assert all(bool((view == 1).all()) for view in views)


def test_the_larger_of_two_blocks_is_kept():
    shelf = Shelf()
    small, large = take(shelf, 2), take(shelf, 100)
    place = large.ctypes.data
    del large, small
    assert take(shelf, 100).ctypes.data == place


def test_nothing_and_too_much_are_not_kept():
    shelf = Shelf()
    assert take(shelf, 0, 5).shape == (0, 5)
    assert shelf.take((100, 100), np.float64, LIMIT).shape == (100, 100)
    assert shelf._spare is None
