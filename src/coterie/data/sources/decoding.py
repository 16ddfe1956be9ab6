"""Decoding: the bytes of published files become arrays."""

from __future__ import annotations

import io
import json
import struct
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from coterie.data.dataset import Dataset
from coterie.errors import DataError
from coterie.typing import Array

Arrays = dict[str, Array]
Files = Mapping[str, bytes]
Pair = tuple[Array, Array]
Rows = Array | Sequence[int]
DType = type[np.generic]

PARTS = ("x_train", "y_train", "x_test", "y_test")
OWNED = (*PARTS, "owners_train", "owners_test")
IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CSV_FILES = ("mnist_train.csv", "mnist_test.csv")
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
BINARY_FILES = tuple(f"{batch}.bin" for batch in BATCHES)
# "lables" is how the package that carries these pictures spells it.
PICTURE_FILES = (*(f"{batch}.png" for batch in BATCHES), "train_lables.json", "test_lables.json")

_UNSIGNED_BYTES = 0x08


def idx(raw: bytes) -> Array:
    """Return the array of an idx file of unsigned bytes (the format of MNIST and its family).

    >>> idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])).tolist()
    [7, 8, 9]
    """
    if len(raw) < 4 or raw[:3] != bytes([0, 0, _UNSIGNED_BYTES]):
        raise DataError(f"not an idx file of unsigned bytes: it starts with {raw[:4]!r}")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"an idx file of {raw[3]} dimensions ends within its header")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    if len(raw) - start != int(np.prod(shape)):
        raise DataError(f"an idx file of shape {shape} holds {len(raw) - start} bytes; it is cut short or damaged")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def idx_set(files: Files) -> Arrays:
    """Decode MNIST and Fashion-MNIST as published: two files of images, two of labels."""
    x_train, y_train, x_test, y_test = (idx(files[name]) for name in IDX_FILES)
    return arrays_of((x_train[:, None], y_train), (x_test[:, None], y_test))


def csv_rows(raw: bytes, side: int) -> tuple[Array, Array]:
    """Return the square images of a table with a header: one image a row, its label first.

    >>> x, y = csv_rows(b"label,1x1,1x2,2x1,2x2\\n7,0,1,2,255\\n", side=2)
    >>> y.tolist(), x.tolist()
    ([7], [[[[0, 1], [2, 255]]]])
    """
    table, columns = _numbers(raw.partition(b"\n")[2]), 1 + side * side
    if table.size == 0 or table.size % columns or table.min() < 0 or table.max() > 255:
        raise DataError(f"not a table of {columns} columns of numbers 0..255; it is cut short or damaged")
    rows = table.astype(np.uint8).reshape(-1, columns)
    return rows[:, 1:].reshape(-1, 1, side, side), rows[:, 0]


def _numbers(body: bytes) -> Array:
    text = body.strip().replace(b"\n", b",").decode("ascii", errors="replace")
    with warnings.catch_warnings():
        # numpy only warns if it cannot read a text to its end.
        warnings.simplefilter("error")
        try:
            return np.fromstring(text, dtype=np.int16, sep=",")
        except (ValueError, DeprecationWarning):
            raise DataError("not a table of numbers; it is cut short or damaged") from None


def csv_set(files: Files, side: int = 28) -> Arrays:
    """Decode MNIST as one table of train and one of test images."""
    train, test = (csv_rows(files[name], side) for name in CSV_FILES)
    return arrays_of(train, test)


def picture(raw: bytes, side: int = 32) -> Array:
    """Return the images of a batch that is stored as one picture, each row of it an image, pixel after pixel."""
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(raw)).convert("RGB"))
    if pixels.shape[1] != side * side:
        raise DataError(f"a picture {pixels.shape[1]} pixels wide cannot hold {side}x{side} images, one a row")
    return pixels.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)


def picture_set(files: Files) -> Arrays:
    """Decode CIFAR-10 as one lossless picture per batch, with the labels beside them."""
    *train, test = (picture(files[f"{batch}.png"]) for batch in BATCHES)
    y_train, y_test = (np.array(json.loads(files[name])) for name in PICTURE_FILES[-2:])
    return arrays_of((np.concatenate(train), y_train), (test, y_test))


def records(raw: bytes) -> tuple[Array, Array]:
    """Decode a binary batch of CIFAR-10: a byte of label, then 32x32 pixels of red, of green, of blue."""
    size = 1 + 3 * 32 * 32
    if not raw or len(raw) % size:
        raise DataError(f"{len(raw)} bytes are not whole records of {size}; the file is cut short or damaged")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, size)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def record_set(files: Files) -> Arrays:
    """Decode CIFAR-10 as published in its binary version."""
    *train, test = (records(files[name]) for name in BINARY_FILES)
    return arrays_of((np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])), test)


def arrays_of(train: Pair, test: Pair, kind: DType = np.uint8) -> Arrays:
    """Return the four arrays of a data set from its ``(x, y)``, with examples of this type."""
    for name, (x, y) in (("train", train), ("test", test)):
        if len(x) != len(y):
            raise DataError(f"{len(x)} {name} images but {len(y)} labels; the files do not belong together")
    kinds: tuple[DType, ...] = (kind, np.int64, kind, np.int64)
    values = zip(PARTS, (*train, *test), kinds, strict=True)
    return {name: np.ascontiguousarray(value, dtype) for name, value, dtype in values}


def owned_arrays(train: Pair, test: Pair, owners: tuple[Rows, Rows], kind: DType) -> Arrays:
    """Return the six arrays of a data set with owners: the number of each example's owner, for train and for test."""
    numbers = {name: np.array(own, np.int64) for name, own in zip(OWNED[len(PARTS) :], owners, strict=True)}
    return {**arrays_of(train, test, kind), **numbers}


def images(name: str, class_names: tuple[str, ...], arrays: Arrays) -> Dataset:
    """Return the data set of these images, which are bytes."""
    x_train, y_train, x_test, y_test = (arrays[part] for part in PARTS)
    return Dataset(name, x_train, y_train, x_test, y_test, len(class_names), scaling=(0, 255), class_names=class_names)


def checked(train: Pair, test: Pair, classes: int, shape: tuple[int, int, int]) -> Arrays:
    """Return the four arrays; refuse images of another type or shape, and labels that are not these classes."""
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
