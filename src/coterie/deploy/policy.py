"""A site's policy: what it answers and what it refuses. No message from a server can change it.

What a server asks for is a task (``protocol.task``); what it asks to come back is the task's ``Report``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from coterie.engine.metrics import find_metric
from coterie.errors import Refused, UsageError
from coterie.files import read_toml
from coterie.models.layout import PARTS
from coterie.models.zoo import models as zoo
from coterie.outside import is_outside
from coterie.protocol.task import Fit, Loss, Race, Score, Task
from coterie.textforms import parse_one
from coterie.typed import at_least, check_limits, each_one_of, make, option

REPORTS = ("params", "losses", "differences", "metrics", "columns")
MAJORITY = "majority"
"""A report that a site gives only if its policy lists it: how many test examples are of its most frequent class."""

HISTOGRAMS = "histograms"
"""A report that a site gives only if its policy lists it: histograms of its scores, for a metric of all sites."""

DEFAULT_POLICY_TEXT = f"""\
# What this site answers. The agent reads this file when it starts; no message from the server can change it.
# A request that is not allowed is refused, and the refusal is written to audit.jsonl.
# Whatever is asked, a reply also holds the number of train examples, the number of the model that was used, and the
# mean loss of the minibatches if the model was trained.

# What may leave: "params" (a trained model, or a part of it), "losses" (of the models received, on the train data),
# "differences" (only how far those losses are from that of the site's own model; "losses" allows them too), "metrics"
# (accuracy and the like, on one split), "columns" (of a table, until the sites have agreed on a schema: how many values
# of each column are numbers or missing, means and deviations of numbers, the words of categories, the classes).
# Two more are not listed, add them if you like: "majority" (when the site says hello: how many of its test examples are
# of its most frequent train class, so that a run knows what guessing gives), "histograms" (with the metrics, for
# auroc_pooled: how many examples of each class have scores in each of 100 bins; of few examples that is nearly every
# score).
reports = [{", ".join(f'"{name}"' for name in REPORTS)}]

# The parts of a model that "params" may be of; "all" is the whole model.
parts = [{", ".join(f'"{name}"' for name in PARTS)}]

# The most minibatch steps that one task may take, all its passes together, and the most examples of a minibatch.
most_steps = 1000
largest_batch = 4096

# Nothing is reported that rests on fewer examples than this. It does not hide what two reports on nearly the same
# examples tell when they are compared.
least_examples = 10

# Of columns nothing is told that rests on fewer rows than this: a word that fewer rows have is not named, and of a
# column with fewer values no mean. Rows with a word that no site names do not fit the schema.
least_count = 5

# The models that may be used: "mlp" is an mlp of any size, "mlp(64)" this one only. A function of an installed package,
# "package.module:function", is code that runs here: it is allowed only if it is listed, to the letter.
models = [
{chr(10).join(f'  "{name}",' for name in zoo)}
]

# The client functions whose arrays may leave, "package.module:function(arguments)": each is code that runs here on the
# train data, and allowed only if it is listed, to the letter. The array of one that is listed leaves as it is. Likewise
# the metrics of other packages, which run on the split that "metrics" is of and give one number.
functions = []

# The largest message that is read, in megabytes, and the most models that one message may hold.
largest_mb = 1024
most_models = 1000

# Whether models that the server hands over are kept, in models/; the largest message that brings one, in megabytes; and
# how many versions are kept, beside the one in use.
keep_models = true
largest_model_mb = 256
most_versions = 5

# The runs that are answered, by name; * stands for anything: "heart-*".
runs = ["*"]
"""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A site's rules; the keys of ``policy.toml``.

    >>> Policy(most_steps=5).check_task(Task(fit=(Fit(steps=6),)), models=1, served=1, sizes={"train": 50})
    Traceback (most recent call last):
    ...
    coterie.errors.Refused: the task takes 6 minibatch steps; this site allows 5 (most_steps in its policy.toml)
    """

    reports: tuple[str, ...] = option(REPORTS, limit=each_one_of("report", *REPORTS, MAJORITY, HISTOGRAMS))
    parts: tuple[str, ...] = option(PARTS, limit=each_one_of("part of a model", *PARTS))
    most_steps: int = option(1000, limit=at_least(1))
    largest_batch: int = option(4096, limit=at_least(1))
    least_examples: int = option(10, limit=at_least(1))
    least_count: int = option(5, limit=at_least(1))
    models: tuple[str, ...] = tuple(zoo)
    functions: tuple[str, ...] = ()
    largest_mb: int = option(1024, limit=at_least(1))
    most_models: int = option(1000, limit=at_least(1))
    keep_models: bool = True
    largest_model_mb: int = option(256, limit=at_least(1))
    most_versions: int = option(5, limit=at_least(1))
    runs: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        check_limits(self)
        for text in self.models:
            call = parse_one(text)
            if ":" not in call.name:
                zoo.find(call.name)

    @property
    def largest_bytes(self) -> int:
        """Return the size of the largest message that is read."""
        return self.largest_mb * 1_000_000

    def check_size(self, size: int) -> None:
        """Refuse a message of too many bytes."""
        _allow(size <= self.largest_bytes, f"the message has {size} bytes", self.largest_bytes, "largest_mb")

    def check_columns(self) -> None:
        """Refuse to tell anything of the columns of a table."""
        _allow("columns" in self.reports, "the server asks for columns", _list(self.reports), "reports")

    def check_delivery(self, size: int) -> None:
        """Refuse a model that is handed over if this site keeps none, or none in a message of this many bytes."""
        _allow(self.keep_models, "a model is handed over", "none", "keep_models")
        most = self.largest_model_mb * 1_000_000
        _allow(size <= most, f"the model's message has {size} bytes", most, "largest_model_mb")

    def check_run(self, run: str) -> None:
        """Refuse a run that this site takes no part in."""
        allowed = any(fnmatchcase(run, pattern) for pattern in self.runs)
        _allow(allowed, f"the run is {run!r}", " or ".join(self.runs), "runs")

    def check_model(self, text: str) -> None:
        """Refuse a model that is not listed; one that would import a package must be listed to the letter."""
        call = parse_one(text)
        names = (str(call),) if ":" in call.name else (str(call), call.name)
        listed = {str(parse_one(each)) for each in self.models}
        _allow(any(name in listed for name in names), f"the model is {text!r}", ", ".join(self.models), "models")

    def check_task(self, task: Task, models: int, served: int, sizes: Mapping[str, int]) -> None:
        """Refuse a task on this number of ``models``, ``served`` of which it trains; ``sizes`` are of the splits."""
        _allow(models <= self.most_models, f"the message holds {models} models", self.most_models, "most_models")
        self._check_report(task)
        for fit in task.fit:
            if fit.keeps is not None:
                raise Refused("the task goes on with momentum of the round before; sites keep nothing between rounds")
        examples = sizes["train"]
        steps = served * sum(fit.minibatches(examples) for fit in task.fit)
        _allow(steps <= self.most_steps, f"the task takes {steps} minibatch steps", self.most_steps, "most_steps")
        batch = max((min(fit.batch, fit.distinct_examples(examples)) for fit in task.fit), default=0)
        _allow(batch <= self.largest_batch, f"a minibatch has {batch} examples", self.largest_batch, "largest_batch")
        for what, number in _rests_on(task, sizes):
            found = f"{what} would rest on {number} examples"
            _allow(number >= self.least_examples, found, f"{self.least_examples} or more", "least_examples")

    def _check_report(self, task: Task) -> None:
        report = task.report
        asked = {
            "params": report.params is not None,
            "losses": report.losses and not report.differences,
            "differences": report.differences and "losses" not in self.reports,
            "metrics": report.evaluate_on is not None,
        }
        for name, wanted in asked.items():
            _allow(not wanted or name in self.reports, f"the report asks for {name}", _list(self.reports), "reports")
        part = report.params
        _allow(part is None or part in self.parts, f"the report asks for the part {part!r}", _list(self.parts), "parts")
        if report.describe is not None:
            asked_for = report.describe.function
            listed = asked_for in self.functions
            _allow(listed, f"the client function is {asked_for!r}", _list(self.functions), "functions")
        self._check_metric(report.metric)

    def _check_metric(self, text: str | None) -> None:
        """Refuse a metric of another package that is not listed, and one that needs histograms if these are not."""
        if text is None:
            return
        if is_outside(text):
            _allow(text in self.functions, f"the metric is {text!r}", _list(self.functions), "functions")
        elif find_metric(text)[0].pool is not None:
            allowed, asked = HISTOGRAMS in self.reports, f"the metric {text} asks for {HISTOGRAMS} of scores"
            _allow(allowed, asked, _list(self.reports), "reports")


def _rests_on(task: Task, sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return what would leave the site, and the least number of examples that each rests on."""
    examples, report = sizes["train"], task.report
    found = [("the reply", examples)]
    found += [("the choice of a model", _looked_at(score, task.fit, examples)) for score in task.choose]
    found += [
        ("a pass of training", min(fit.distinct_examples(examples), fit.minibatches(examples) * fit.batch))
        for fit in task.fit
    ]
    if report.sample is not None or report.half is not None:
        part, what = "a sample" if report.half is None else "a half", "losses" if report.losses else "metrics"
        found.append((f"the {what} of {part}", int(report.distinct_examples(np.array(examples)))))
    if report.evaluate_on is not None:
        found.append((f"the metrics on the {report.evaluate_on} split", sizes.get(report.evaluate_on, 0)))
    return found


def _looked_at(score: Score, fit: tuple[Fit, ...], examples: int) -> int:
    """Return the least number of examples that a client looks at for a score."""
    if isinstance(score, Loss):
        return examples if score.examples is None else min(score.examples, examples)
    if isinstance(score, Race):
        return min(score.first, examples if score.examples is None else score.examples, examples)
    return min(fit[0].batch, fit[0].distinct_examples(examples))


def _allow(good: bool, what: str, limit: object, key: str) -> None:
    if not good:
        raise Refused(f"{what}; this site allows {limit} ({key} in its policy.toml)")


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def load_policy(path: str | Path) -> Policy:
    """Read a policy from a file; a key that is left out has its default."""
    try:
        table = read_toml(Path(path))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the policy {path}: {why}; `coterie federate init` writes one") from None
    return make(Policy, table, where=str(path), noun="key")
