"""What leaves a client: what a report names, beside its number of train examples and the row it worked on.

After training the mean loss of its minibatches comes too, after a race the number of its evaluations. Shape, type and
range of every array are in ``protocol.message.form``; what a site permits is in ``deploy.policy``.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from coterie.errors import require as _require
from coterie.models.layout import MIXES
from coterie.typing import Array


@dataclass(frozen=True)
class Sample:
    """The examples ``begin`` to ``end`` of a client's train data, in a random order drawn at its address.

    >>> Sample(0, 16).following, Sample(16, 32).following
    (Sample(begin=16, end=32), Sample(begin=32, end=64))
    """

    begin: int
    end: int

    def __post_init__(self) -> None:
        _require(0 <= self.begin < self.end, "a sample", f"{self.begin} to {self.end}", "a range from at least 0")

    @property
    def following(self) -> Sample:
        """Return the next sample, after which twice as many examples have been seen."""
        return Sample(self.end, 2 * self.end)

    def count(self, sizes: Array) -> Array:
        """Return the number of examples in the sample at clients with ``sizes`` examples.

        >>> Sample(16, 32).count(np.array([10, 20, 99])).tolist()
        [0, 4, 16]
        """
        number: Array = np.minimum(sizes, self.end) - np.minimum(sizes, self.begin)
        return number


BOUNDED = ("zero-one", "clipped")
"""Losses in [0, 1] that a report may ask for in place of the training loss."""


def check_bounded(loss: str | None, classes: int | None) -> None:
    """Refuse a bounded loss that is not defined for these data."""
    _require(loss != "zero-one" or classes is not None, "loss", "zero-one and the target a number", "clipped, or none")


@dataclass(frozen=True)
class Describe:
    """Name a client function, ``package.module:function(arguments)``, whose array comes back.

    ``all_models``: the function reads all cluster models, so that the client must be sent them.
    """

    function: str
    all_models: bool = False


@dataclass(frozen=True)
class Report:
    """What comes back from a client.

    ``params`` names the part of the trained model (None: nothing of it), ``losses`` asks for the mean train loss under
    every model received, ``evaluate_on`` the metrics of the resulting model on that split. The losses are training
    losses, or ``bounded`` to [0, 1]: ``zero-one`` (for classes only), or ``clipped`` (at 1, with cross entropy in units
    of that of a guess among all classes).
    With ``differences`` each loss comes as |L(w) - L(own)|, own the model of the row that the client was
    given, which may be a reference; the losses themselves do not leave the client.
    With a ``sample`` the losses are means over a part of the train split, and their spread comes back beside them; with
    a ``half``, losses, or metrics on the train split, are those of the half that ``Fit.half`` names, which a pass of
    the same key on the other half does not see.
    ``mix``: how the outputs of several models become one (``models.layout.MIXES``), where a client is served several.
    ``describe``: a client function whose array comes back (``protocol.client_function``). ``metric``: the name of one
    more number of the evaluated model, from its outputs and the truth: ``package.module:function`` is a user's own.
    """

    params: str | None = "all"
    _: KW_ONLY
    losses: bool = False
    evaluate_on: str | None = None
    mix: str | None = None
    sample: Sample | None = None
    bounded: str | None = None
    half: int | None = None
    differences: bool = False
    describe: Describe | None = None
    metric: str | None = None

    def __post_init__(self) -> None:
        known = (None, "train", "validation", "test")
        _require(self.bounded in (None, *BOUNDED), "report.bounded", repr(self.bounded), " or ".join(BOUNDED))
        _require(
            self.bounded is None or self.losses, "report.bounded", self.bounded, "None where no losses are reported"
        )
        _require(self.mix in (None, *MIXES), "report.mix", repr(self.mix), " or ".join(MIXES))
        _require(self.mix is None or self.params is None, "report.params", repr(self.params), "None for a mixture")
        _require(self.evaluate_on in known, "report.evaluate_on", repr(self.evaluate_on), "train, validation or test")
        _require(
            self.metric is None or self.evaluate_on is not None,
            "report.metric",
            self.metric,
            "None without evaluate_on",
        )
        whole = not self.differences or (self.losses and self.sample is None)
        _require(whole, "report.differences", "true", "false without losses, or with a sample of them")
        _require(self.half in (None, 0, 1), "report.half", self.half, "0 or 1, or none")
        judged = self.losses or self.evaluate_on == "train"
        alone = self.half is None or (judged and self.evaluate_on in (None, "train") and self.sample is None)
        _require(alone, "report.half", self.half, "None without losses or metrics of train data, or with a sample")
        _require(self.sample is None or self.losses, "report.sample", self.sample, "None where no losses are reported")

    def distinct_examples(self, sizes: Array) -> Array:
        """Return the number of examples behind the reported losses of clients with ``sizes`` examples.

        >>> Report(losses=True, half=1).distinct_examples(np.array([1, 4, 5])).tolist()
        [1, 2, 2]
        """
        if self.sample is not None:
            return self.sample.count(sizes)
        found: Array = sizes if self.half is None else np.maximum(1, (sizes + 1 - self.half) // 2)
        return found
