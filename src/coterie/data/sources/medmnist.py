"""MedMNIST: medical images of 28x28 pixels, from the ``.npz`` files that its authors publish.

Their validation images become train images, since each client sets validation data aside from what it trains on; the
published test images stay as they are. The MD5 sums are those in the authors' package of version 3.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from coterie.data.sources.cache import Pin, Published, Source
from coterie.data.sources.decoding import Arrays, Files, checked, images
from coterie.data.sources.fetching import from_zip, local, web_zip
from coterie.errors import DataError, UnknownName
from coterie.typing import Array

ADDRESS = "https://zenodo.org/records/10519652/files/{}.npz?download=1"
SPLITS = ("train", "val", "test")
FILES = tuple(f"{split}_{what}.npy" for split in SPLITS for what in ("images", "labels"))


@dataclass(frozen=True)
class Kind:
    """One of the sets: the MD5 of its file, its colour channels and its classes."""

    md5: str
    channels: int
    class_names: tuple[str, ...]


_ORGANS = (
    *("bladder", "left femur", "right femur", "heart", "left kidney", "right kidney"),
    *("liver", "left lung", "right lung", "pancreas", "spleen"),
)
KINDS = {
    "pathmnist": Kind(
        "a8b06965200029087d5bd730944a56c1",
        3,
        (
            *("adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle"),
            *("normal mucosa", "cancer stroma", "cancer epithelium"),
        ),
    ),
    "dermamnist": Kind(
        "0744692d530f8e62ec473284d019b0c7",
        3,
        (
            *("actinic keratosis", "basal cell carcinoma", "benign keratosis", "dermatofibroma"),
            *("melanoma", "melanocytic nevus", "vascular lesion"),
        ),
    ),
    "octmnist": Kind("c68d92d5b585d8d81f7112f81e2d0842", 1, ("neovascularisation", "oedema", "drusen", "normal")),
    "pneumoniamnist": Kind("28209eda62fecd6e6a2d98b1501bb15f", 1, ("normal", "pneumonia")),
    "retinamnist": Kind("bd4c0672f1bba3e3a89f0e4e876791e4", 3, tuple("01234")),
    "breastmnist": Kind("750601b1f35ba3300ea97c75c52ff8f6", 1, ("malignant", "normal or benign")),
    "bloodmnist": Kind(
        "7053d0359d879ad8a5505303e11de1dc",
        3,
        (
            *("basophil", "eosinophil", "erythroblast", "immature granulocyte"),
            *("lymphocyte", "monocyte", "neutrophil", "platelet"),
        ),
    ),
    "tissuemnist": Kind(
        "ebe78ee8b05294063de985d821c1c34b",
        1,
        (
            *("collecting duct", "distal tubule", "glomerular endothelium", "interstitial endothelium"),
            *("leukocytes", "podocytes", "proximal tubule", "thick ascending limb"),
        ),
    ),
    "organamnist": Kind("68e3f8846a6bd62f0c9bf841c0d9eacc", 1, _ORGANS),
    "organcmnist": Kind("b9ceb9546e10131b32923c5bbeaea2b1", 1, _ORGANS),
    "organsmnist": Kind("9ab87b696fb54e2a387ebe992d6ed5f1", 1, _ORGANS),
}


def source(name: str, file: str | None) -> Source:
    """Return one of the sets from the user's file, or else from the cache or its home."""
    if name not in KINDS:
        raise UnknownName("set of medmnist (those of flat images with one label)", name, KINDS)
    kind, full = KINDS[name], f"medmnist-{name}"
    build, read = partial(images, full, kind.class_names), partial(array_set, kind)
    if file is not None:
        path = Path(file).expanduser()
        return Source(full, lambda report: build(local(path, f"{name}.npz", lambda raw: read(from_zip(raw, FILES)))))
    origin = web_zip(ADDRESS.format(name), kind.md5, FILES, read)
    remedy = f"Download it elsewhere and name it as medmnist({name},file=PATH)"
    return Published(full, Pin(None), (origin,), build, remedy=remedy).source()


def array_set(kind: Kind, files: Files) -> Arrays:
    """Decode a set as published: images ``(n, 28, 28)`` or ``(n, 28, 28, 3)`` and labels ``(n, 1)`` of three splits."""
    train, val, test = (
        (_channels_first(_array(files[f"{split}_images.npy"])), _array(files[f"{split}_labels.npy"]).ravel())
        for split in SPLITS
    )
    if train[0].shape[1:] != val[0].shape[1:]:
        raise DataError(f"train images of shape {train[0].shape[1:]} and val images of {val[0].shape[1:]} do not fit")
    both = np.concatenate([train[0], val[0]]), np.concatenate([train[1], val[1]])
    return checked(both, test, len(kind.class_names), (kind.channels, 28, 28))


def _array(raw: bytes) -> Array:
    found: Array = np.load(io.BytesIO(raw), allow_pickle=False)
    return found


def _channels_first(x: Array) -> Array:
    return x[:, None] if x.ndim == 3 else np.moveaxis(x, -1, 1)
