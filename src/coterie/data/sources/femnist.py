"""FEMNIST as LEAF makes it: folders of ``.json`` files with every writer's images, 784 floats each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.apportion import split_by_owner
from coterie.data.dataset import Dataset, Owners
from coterie.data.sources.cache import Source
from coterie.errors import DataError
from coterie.typing import Array

CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SIDE = 28


@dataclass(frozen=True)
class WriterImages:
    """The images of a folder as bytes, their labels, and the number of each image's writer."""

    writers: tuple[str, ...]
    x: Array
    y: Array
    owners: Array

    def take(self, rows: Array) -> WriterImages:
        """Return some of the images, in this order."""
        return WriterImages(self.writers, self.x[rows], self.y[rows], self.owners[rows])


def writers(folder: str) -> Source:
    """Return the source of a folder, in which every writer is an owner."""
    return Source("femnist", lambda report: read_folder(Path(folder).expanduser()))


def read_folder(folder: Path) -> Dataset:
    """Read LEAF's folders ``train`` and ``test``, or one folder and split each writer's images here."""
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train, test = read_images(folder / "train"), read_images(folder / "test")
        alone = sorted({*train.writers} ^ {*test.writers})
        if alone:
            raise DataError(
                f"writer {alone[0]!r} of {folder} is in train or in test only; split with LEAF by sample and not by "
                f"user, or name the folder all_data"
            )
    else:
        whole = read_images(folder / "all_data" if (folder / "all_data").is_dir() else folder)
        train, test = map(whole.take, split_by_owner("femnist", whole.writers, whole.owners, whole.y))
    owners = Owners(train.writers, train.owners, test.owners)
    return Dataset(
        "femnist",
        train.x,
        train.y,
        test.x,
        test.y,
        len(CLASSES),
        scaling=(0, 255),
        class_names=CLASSES,
        owners=owners,
    )


def read_images(folder: Path) -> WriterImages:
    """Read all writers of a folder's ``.json`` files, sorted by name; refuse a writer who is in two files."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder} holds no .json file; name the folder data that LEAF made for femnist")
    found: dict[str, tuple[Array, Array, Path]] = {}
    for file in files:
        for writer, (x, y) in _read_file(file).items():
            if writer in found:
                raise DataError(f"writer {writer!r} is in {file} and in {found[writer][2].name}; remove one of them")
            found[writer] = x, y, file
    names = tuple(sorted(found))
    if not names:
        raise DataError(f"{folder} names no writer; make it again with LEAF")
    parts = [found[name] for name in names]
    return WriterImages(
        names,
        np.concatenate([x for x, _, _ in parts]),
        np.concatenate([y for _, y, _ in parts]),
        np.repeat(np.arange(len(names)), [len(y) for _, y, _ in parts]),
    )


def _read_file(file: Path) -> dict[str, tuple[Array, Array]]:
    remedy = "copy it again, or make it again with LEAF"
    try:
        content = json.loads(file.read_bytes())
        listed = dict(zip(content["users"], content["num_samples"], strict=True))
        return {writer: _pair(content["user_data"][writer], count) for writer, count in listed.items()}
    except DataError as error:
        raise DataError(f"{file}: {error}; {remedy}") from None
    except KeyError as error:
        raise DataError(f"{file} has no {error}, which LEAF's files have; {remedy}") from None
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{file} is damaged or no file of LEAF ({error}); {remedy}") from None


def _pair(data: dict[str, Any], count: int) -> tuple[Array, Array]:
    """Return a writer's images as bytes, which LEAF writes divided by 255, and labels."""
    x, y = np.array(data["x"], np.float64), np.array(data["y"], np.float64)
    if x.shape != (count, SIDE * SIDE) or y.shape != (count,):
        raise DataError(f"a writer of {count} examples has x of shape {x.shape} and y of shape {y.shape}")
    off = x[~((x >= 0) & (x <= 1))]
    if off.size:
        raise DataError(f"a pixel is {off[0]}; all must be from 0 to 1")
    odd = np.setdiff1d(y, np.arange(len(CLASSES)))
    if odd.size:
        raise DataError(f"a label is {odd[0]:g}; all must be whole numbers 0..{len(CLASSES) - 1}")
    return np.rint(255 * x).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), y.astype(np.int64)
