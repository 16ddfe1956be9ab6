"""Every error a user can meet, in one tree.

::

    CoterieError
    ├── UsageError                what was asked for is wrong (exit code 2)
    │   ├── UnknownName           no such algorithm, partition, model, data set, argument
    │   ├── DataError             a file or array that cannot be used, a fetch that failed
    │   │   └── EstimatorError    arrays or parameters that an estimator cannot use; also a ValueError
    │   ├── PartitionError        a partition that these data cannot be cut into
    │   ├── ModelError            a model that cannot be built or does not fit the data
    │   └── RunFolderError        a run folder that exists, is damaged or belongs to another run
    └── FederationError           too few clients answered, or a message that cannot be read
        └── Refused               a site's policy does not allow what was asked

A message names the value, the limit and the remedy, in one line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoterieError(Exception):
    """The root: catch this to catch everything coterie raises on purpose."""


class UsageError(CoterieError):
    """A request that is wrong; the message names the value, the limit and the remedy."""


def did_you_mean(name: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Return a question for the known name that is nearest to one, in letters of any case; empty if none is near.

    ``alike``: from 0 to 1, how alike the two must be.

    >>> did_you_mean("BRANCH", ["branch", "ward"]), did_you_mean("BRANCH", ["age"])
    (" did you mean 'branch'?", '')
    """
    plain = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), plain, n=1, cutoff=alike)
    return f" did you mean {plain[near[0]]!r}?" if near else ""


class UnknownName(UsageError):
    """A name that is in no catalogue; the message offers the nearest ones.

    >>> print(UnknownName("algorithm", "wecf", ["fedavg", "ifca", "wecfl"]))
    unknown algorithm 'wecf'; did you mean 'wecfl'? known: fedavg, ifca, wecfl
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(set(known))
        super().__init__(
            f"unknown {kind} {name!r};{did_you_mean(name, names, 0.5)} known: {', '.join(names) or 'none'}"
        )
        self.asked = (kind, name, names)

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, list[str]]]:
        """Return how to make the error again in another process."""
        return type(self), self.asked


class DataError(UsageError):
    """A file or an array that cannot be used, or a fetch that failed."""


class EstimatorError(DataError, ValueError):
    """Arrays or parameters that an estimator cannot use; scikit-learn wants a ValueError for these."""


class PartitionError(UsageError):
    """A partition that these data cannot be cut into."""


class ModelError(UsageError):
    """A model that cannot be built, or that does not fit the data."""


class RunFolderError(UsageError):
    """A run folder that exists, is damaged, or belongs to another run."""


class FederationError(CoterieError):
    """Too few clients answered for a round to count, or a message cannot be read."""


class Refused(FederationError):
    """What a server asked is not allowed by the site's policy; the message names the value, the limit and the key."""


def require(good: bool, name: str, value: object, limit: str) -> None:
    """Refuse a value that is not good."""
    if not good:
        raise UsageError(f"{name} is {value}; it must be {limit}")
