"""Sets of pictures: how arrays of bytes become a data set, and how a file of another set is told apart."""

from __future__ import annotations

import numpy as np

from coterie.data.dataset import Dataset
from coterie.data.published.decode import PARTS, Arrays, Pair, arrays_of
from coterie.errors import DataError


def images(name: str, class_names: tuple[str, ...], arrays: Arrays) -> Dataset:
    """The data set of these images of bytes."""
    x_train, y_train, x_test, y_test = (arrays[part] for part in PARTS)
    return Dataset(name, x_train, y_train, x_test, y_test, len(class_names), (0, 255), class_names)


def checked(train: Pair, test: Pair, classes: int, shape: tuple[int, int, int]) -> Arrays:
    """The four arrays, if the images are bytes of this shape and the train labels are all of these classes."""
    for split, (x, y) in (("train", train), ("test", test)):
        if x.dtype != np.uint8 or x.shape[1:] != shape:
            found = f"{split} images of {x.dtype} and shape {x.shape[1:]}, not of uint8 and {shape}"
            raise DataError(f"it has {found}; it is of another data set")
        odd = np.setdiff1d(y, np.arange(classes))
        if odd.size:
            raise DataError(f"it has the {split} label {odd[0]} outside 0..{classes - 1}; it is of another data set")
    absent = np.setdiff1d(np.arange(classes), train[1])
    if absent.size:
        raise DataError(f"no train image is of class {absent[0]} of {classes}; it is of another data set or cut short")
    return arrays_of(train, test)
