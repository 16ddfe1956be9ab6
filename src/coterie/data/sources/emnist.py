"""EMNIST: handwritten letters and digits, from the archives that NIST publishes.

Its images are stored by column and are turned upright here; its letters are labelled from 1 and are numbered from 0
here.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np

from coterie.data.sources.cache import Pin, Published, Source
from coterie.data.sources.decoding import IDX_FILES, Arrays, Files, checked, idx, images
from coterie.data.sources.fetching import from_zip, local, web_zip
from coterie.errors import DataError, UnknownName
from coterie.typing import Array

ADDRESS = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
# Of the whole archive, which holds all variants.
MD5 = "58c8d27c78d21e728a6bc7b3cc06412e"

_DIGITS, _CAPITALS, _SMALL = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
# Small letters that look unlike their capitals; the others are merged with them.
_UNLIKE = "abdefghnqrt"
VARIANTS = {
    "balanced": _DIGITS + _CAPITALS + _UNLIKE,
    "byclass": _DIGITS + _CAPITALS + _SMALL,
    "bymerge": _DIGITS + _CAPITALS + _UNLIKE,
    "letters": _SMALL,
    "digits": _DIGITS,
    "mnist": _DIGITS,
}
_FIRST_LABEL = {"letters": 1}


def source(variant: str, file: str | None) -> Source:
    """Return a variant from the user's file, or else from the cache or NIST."""
    if variant not in VARIANTS:
        raise UnknownName("variant of emnist", variant, VARIANTS)
    name, classes = f"emnist-{variant}", tuple(VARIANTS[variant])
    build = partial(images, name, classes)
    if file is not None:
        path = Path(file).expanduser()
        what = "gzip.zip, matlab.zip or .mat file of EMNIST"
        return Source(name, lambda report: build(local(path, what, partial(read_file, variant))))
    origin = web_zip(ADDRESS, MD5, idx_files(variant), partial(idx_set, variant))
    remedy = f"Download it elsewhere and name it as emnist({variant},file=PATH)"
    return Published(name, Pin(None), (origin,), build, remedy=remedy).source()


def idx_files(variant: str) -> tuple[str, ...]:
    """Return the names of a variant's four files, as NIST has them."""
    return tuple(f"emnist-{variant}-{name.replace('t10k', 'test')}.gz" for name in IDX_FILES)


def idx_set(variant: str, files: Files) -> Arrays:
    """Decode a variant as published: gzipped idx files of images and labels."""
    x_train, y_train, x_test, y_test = (idx(gzip.decompress(files[name])) for name in idx_files(variant))
    return _upright(variant, (x_train, y_train), (x_test, y_test))


def matlab_set(variant: str, file: BinaryIO) -> Arrays:
    """Decode a variant as published for Matlab: images of 784 bytes and labels, for train and test."""
    from scipy.io import loadmat

    try:
        dataset = loadmat(file, squeeze_me=False)["dataset"][0, 0]
        (x_train, y_train), (x_test, y_test) = (
            (dataset[split][0, 0]["images"].reshape(-1, 28, 28), dataset[split][0, 0]["labels"].ravel())
            for split in ("train", "test")
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DataError(f"no Matlab file of EMNIST ({error})") from error
    return _upright(variant, (x_train, y_train), (x_test, y_test))


def read_file(variant: str, file: BinaryIO) -> Arrays:
    """Decode a variant from an archive of idx files, an archive of Matlab files, or a Matlab file."""
    if not zipfile.is_zipfile(file):
        file.seek(0)
        if file.read(2) == b"PK":
            raise DataError("the archive is cut short")
        file.seek(0)
        return matlab_set(variant, file)
    matlab = f"emnist-{variant}.mat"
    with zipfile.ZipFile(file) as archive:
        present = {PurePosixPath(path).name for path in archive.namelist()}
    if matlab in present:
        return matlab_set(variant, io.BytesIO(from_zip(file, [matlab])[matlab]))
    return idx_set(variant, from_zip(file, idx_files(variant)))


def _upright(variant: str, *pairs: tuple[Array, Array]) -> Arrays:
    first = _FIRST_LABEL.get(variant, 0)
    train, test = ((x.transpose(0, 2, 1)[:, None], y.astype(np.int64) - first) for x, y in pairs)
    return checked(train, test, len(VARIANTS[variant]), (1, 28, 28))
