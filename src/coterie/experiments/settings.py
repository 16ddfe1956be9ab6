"""The settings of an experiment: their names, types, limits, defaults and help; and the goal that ``until`` names.

Each is a flag of the command line and a key of an experiment file of the same name. What is made from settings, such
as data and algorithms, is in ``building``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from coterie.data import Reading
from coterie.data.named import is_tables
from coterie.errors import UnknownName, UsageError
from coterie.experiments.papers import AS, expand
from coterie.experiments.table_defaults import with_table_defaults
from coterie.experiments.tracked import TRACKERS, trackers_of
from coterie.files import read_toml
from coterie.limits import CLIENTS, LARGEST, ROUNDS
from coterie.outside import is_outside
from coterie.server.exchange import FACTOR
from coterie.textforms import parse_one
from coterie.typed import COMMAND_LINE, at_least, at_least_or, check_limits, make, one_of, option, types_of, within

if TYPE_CHECKING:
    from coterie.experiments.records import DataFacts
    from coterie.protocol.task import Fit

OF_EVERY_RUN = ("validation", "seed")
"""The options of reading that are settings of every run, whatever its data."""

OWN = tuple(each.name for each in fields(Reading) if each.name not in OF_EVERY_RUN)
"""The settings that say how a user's own files are read."""

BEGAN = "began"
"""The table of a run's config.toml that says with which earlier run's models it began."""

NOT_SETTINGS = ("made_by", "examples", BEGAN)
"""What a run's config.toml holds beside its settings."""


OF_CLASSES, OF_TARGETS, OF_CLUSTERS = ("accuracy", "macro_f1"), ("rmse",), ("purity", "ari")
"""Scores that may be a goal: of classification, of regression (an error: at most), and of clusters with true groups."""


@dataclass(frozen=True)
class Goal:
    """A score and the value that it is to reach: at least this value, or at most this value if smaller is better.

    ``metric``: the text of the metric that the user named, if it is the score.
    """

    name: str
    value: float
    metric: str | None = None

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}"

    @property
    def key(self) -> str:
        """Return the key of a summary for the first round that reached the goal."""
        return f"rounds_to_{self.name}"

    @property
    def column(self) -> str:
        """Return the key of the score in the record of a round."""
        return self.name if self.metric is None else "metric"

    @property
    def smaller(self) -> bool:
        """Return whether a smaller value is better."""
        if self.metric is None:
            return self.name in OF_TARGETS
        from coterie.engine.metrics import find_metric

        return find_metric(self.metric)[0].smaller

    def first(self, history: Sequence[dict[str, Any]]) -> int | None:
        """Return the number of the first round, from 0, that reached the goal; a round without the score did not."""
        key, smaller = self.column, self.smaller
        for record in history:
            score = record.get(key)
            if score is not None and (score <= self.value if smaller else score >= self.value):
                return int(record["round"])
        return None

    def check(self, facts: DataFacts) -> None:
        """Refuse a score that runs on these data do not have; a metric refuses data itself."""
        if self.metric is not None:
            return
        scores = OF_TARGETS if facts.classes is None else OF_CLASSES
        possible = scores if facts.groups is None else (*scores, *OF_CLUSTERS)
        if self.name not in possible:
            what = "the true groups are not known" if self.name in OF_CLUSTERS else f"{facts.data} has no such score"
            raise UsageError(f"until is {self}, but {what}; take {' or '.join(possible)}")


PURE = Goal("purity", 0.9)
"""The goal of the joint paper, recorded in every run with true groups."""


def read_goal(text: str, metric: str | None = None) -> Goal:
    """Parse a goal; ``metric``: that the user named, which may be a goal by its name.

    >>> read_goal("accuracy=0.9"), read_goal("auroc=0.8", "auroc(average=support)").column
    (Goal(name='accuracy', value=0.9, metric=None), 'metric')
    """
    name, _, number = (word.strip() for word in text.partition("="))
    named = None if metric is None else parse_one(metric).name.rpartition(":")[2]
    scores = (*OF_CLASSES, *OF_TARGETS, *OF_CLUSTERS)
    if name not in scores and name != named:
        _refuse_score(text, name, scores if named is None else (*scores, named))
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"until is {text!r}; write a score and a number, such as {name}=0.9") from None
    if name == named:
        if not math.isfinite(value):
            raise UsageError(f"until is {text!r}; the number must be finite")
        _check_range(text, value, str(metric))
        return Goal(name, value, metric)
    if not 0 < value <= (math.inf if name in OF_TARGETS else 1) or math.isinf(value):
        raise UsageError(f"until is {text!r}; the number must be {'> 0' if name in OF_TARGETS else 'in (0, 1]'}")
    return Goal(name, value)


def _check_range(text: str, value: float, metric: str) -> None:
    """Refuse a value that a metric never has; what a user's own may have is not known."""
    if is_outside(metric):
        return
    from coterie.engine.metrics import find_metric

    named, _ = find_metric(metric)
    if named.low is not None and named.high is not None and not named.low <= value <= named.high:
        raise UsageError(f"until is {text!r}, and {named.name} is {named.range}; give a number of that range")


def _refuse_score(text: str, name: str, scores: Sequence[str]) -> NoReturn:
    """Refuse a goal whose score the run does not have, with the option that it needs if it is a metric."""
    from coterie.engine.metrics import METRICS

    if name in METRICS:
        raise UsageError(f"until is {text}, and the run is not scored by {name}; add --metric {name}")
    raise UnknownName("score to reach", name, scores)


def _own(name: str) -> Any:
    """Declare an option of ``Reading`` as a setting, with its help there; None is not given."""
    (each,) = (each for each in fields(Reading) if each.name == name)
    default = f"; default {each.default}" if each.default else ""
    return option(None, f"{each.metadata['help']}{default}")


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    algorithm: str = field(metadata={"example": "'wecfl', see `coterie list algorithms`"})
    _: KW_ONLY
    data: str = option("digits", "a data set (coterie list data), or your own folder or file (.npz, .csv, .parquet)")
    classes: str | None = option(None, "only these classes of the data, by name or number: a..j or 1,3,7")
    partition: str | None = option(None, "how data are dealt to clients, e.g. 'dirichlet(0.1,10)'")
    clients: int | None = option(None, "number of clients (40 for digits, otherwise 200)", at_least(1, CLIENTS))
    clusters: int | str | None = option(
        None, "number of clusters, or auto: find it (4 for digits, otherwise 10)", at_least_or(1, "auto")
    )
    advise: bool | None = option(None, "say whether one model is enough, and how many clusters: one more probe")
    references: bool | None = option(
        None, "also train fedavg and local, for the verdict (yes for your own tables): in OUT/references"
    )
    choose: str | None = option(None, "how clients that choose do it: exact, or race, on growing parts of their data")
    model: str | None = option(None, "a network: 'mlp(512,128)', cnn, lenet, package.module:function")
    rounds: int = option(20, "communication rounds", at_least(1, ROUNDS))
    steps: int | None = option(None, "local minibatch steps a round (10 unless --epochs)")
    epochs: int | None = option(None, "local epochs a round, instead of steps; with --steps whichever is less")
    batch: int = option(32, "minibatch size")
    lr: float | None = option(None, "local learning rate (0.1 for dense nets, 0.01 for convolutions)")
    momentum: float = option(0.9, "local momentum, reset every round")
    momentum_kept: bool | None = option(None, "clients keep their momentum from round to round (simulations only)")
    optimizer: str = option("sgd", "local optimiser: sgd or adam")
    weight_decay: float = option(0.0, "local weight decay")
    lr_decay: float = option(1.0, "factor on the learning rate after every round")
    label: str | None = _own("label")
    client: str | None = _own("client")
    group: str | None = _own("group")
    attribute: str | None = _own("attribute")
    ignore: str | None = _own("ignore")
    categorical: str | None = _own("categorical")
    missing: str | None = _own("missing")
    drop_missing_labels: bool | None = _own("drop_missing_labels")
    task: str | None = _own("task")
    tokens: bool | None = _own("tokens")
    test: float | None = _own("test")
    validation: float = option(0.0, "share of each client's train data set aside for validation", within("[0, 1)"))
    participation: float = option(1.0, "share of clients asked each round", within("(0, 1]"))
    join: str | Mapping[str, int] | None = option(
        None, "who joins later, e.g. '0.2@10': a share, or a name, @ the round"
    )
    leave: str | Mapping[str, int] | None = option(None, "who leaves, e.g. '0.1@20': gone from that round on")
    min_clients: int = option(1, "replies without which a round fails", at_least(1))
    norm_bound: float = option(
        FACTOR,
        "leave out an update longer than this many times the round's median; 0: none",
        at_least(1, LARGEST, zero="to take all"),
    )
    weight_bound: float | None = option(
        None,
        "a client counts at most this many times the median of examples; 0: no bound (5 in a federation)",
        at_least(1, LARGEST, zero="for any"),
    )
    robust: str = option(
        "mean", "how a cluster's models become one: mean, median, trimmed(0.2), krum(1), geometric-median"
    )
    exact_clients: int = option(
        5000, "methods that compare all pairs of clients do so up to this number; beyond, by sketches", at_least(2)
    )
    sketch: int = option(512, "numbers in the sketch of a client, beyond --exact-clients", at_least(16))
    sketch_sample: int = option(1000, "clients that are clustered by sketches; the others join", at_least(2))
    seed: int = option(1, "the seed of everything: draw, starts, minibatches", at_least(0))
    eval_every: int = option(1, "evaluate every this many rounds (the last three always)", at_least(1))
    until: str | None = option(
        None, "record when a score is reached: accuracy=0.9; macro_f1, purity, ari, rmse (at most), or that of --metric"
    )
    stop: bool | None = option(None, "end the run in the first evaluated round in which --until holds")
    diagnose: bool | None = option(None, "also record clusterability from gradients, and the objective: one more pass")
    weigh_by: str = option(
        "test", "in scores over clients each counts by its test or its train examples", one_of("test", "train")
    )
    metric: str | None = option(
        None, "the score that everything is judged by: auroc, mae, package.module:function, ... (coterie list metrics)"
    )
    apart: bool | None = option(
        None, "say in which columns or classes clusters differ (default: in simulations): sums of each client's columns"
    )
    track: str | None = option(None, f"also tell a tracker of experiments: {', '.join(TRACKERS)}; several with commas")
    checkpoint_every: int = option(1, "save the state every this many rounds", at_least(1))
    runtime: str = option(
        "simulator",
        "where clients run: simulator, in this process, or ray, in worker processes",
        one_of("simulator", "ray"),
    )
    threads: int | None = option(None, "worker threads, or Ray workers (all cores)")
    plan: str = option("auto", "how the engine lays work on cores: auto, native, single, workers, lockstep")
    device: str = option("cpu", "torch device of the clients' work")

    def __post_init__(self) -> None:
        from coterie.server.robust import rules

        check_limits(self, "-")
        if self.momentum_kept and self.runtime != "simulator":
            raise UsageError(f"momentum-kept needs --runtime simulator, not {self.runtime}: workers keep nothing")
        if self.until is None and self.stop:
            raise UsageError("stop is set, but nothing says when; add --until, such as --until accuracy=0.9")
        if self.until is not None:
            read_goal(self.until, self.metric)
        trackers_of(self.track)
        if self.metric is not None and not is_outside(self.metric):
            from coterie.engine.metrics import find_metric

            find_metric(self.metric)
        rules.build(self.robust)
        replace(self.fit(), keeps="0" if self.momentum_kept else None)

    def fit(self) -> Fit:
        """Return how clients train."""
        from coterie.protocol.task import Fit

        return Fit(
            steps=self.steps,
            epochs=self.epochs,
            batch=self.batch,
            lr=self.lr,
            momentum=self.momentum,
            optimizer=self.optimizer,
            weight_decay=self.weight_decay,
            lr_decay=self.lr_decay,
        )

    def table(self) -> dict[str, Any]:
        """Return the settings that are given, as a table for a TOML file."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def reading(self) -> dict[str, Any]:
        """Return how a user's own files are read: only the options that are given, the reader knows the others."""
        return reading_options(self, (*OWN, "seed"))


def reading_options(settings: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the options of ``Reading`` that settings give; where reading takes several words, they have commas."""
    given = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    several = [name for name in given if types_of(Reading)[name] == tuple[str, ...]]
    return given | {name: tuple(filter(None, given[name].split(","))) for name in several}


def load_settings(path: Path, given: Mapping[str, Any]) -> Settings:
    """Read settings from an experiment file or a run's config.toml; ``given`` flags override it."""
    return make_settings({**read_table(path), **given}, str(path))


def read_table(path: Path, ordered: bool = False) -> dict[str, Any]:
    """Read the table of settings in an experiment file or a run's config.toml.

    A run that was begun without a number of steps took the general one, whatever its data. ``ordered``: the rounds are
    those that a person asked for, without those of an earlier run with which this one began.
    """
    from coterie.protocol.task import Fit

    try:
        table = read_toml(path)
    except FileNotFoundError:
        raise UsageError(f"there is no experiment file {path}; name an algorithm or an existing .toml file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {why}; it must be a TOML file of settings") from None
    if ordered and BEGAN in table:
        table["rounds"] -= table[BEGAN]["round"]
    begun = {} if "made_by" not in table or {"steps", "epochs"} & table.keys() else {"steps": Fit().minibatches(0)}
    return begun | {name: value for name, value in table.items() if name not in NOT_SETTINGS}


def in_words(path: Path) -> bool:
    """Return whether a run's config.toml names its data, so that they can be made again from it."""
    examples = read_toml(path).get("examples")
    return bool(examples.get("words", True)) if isinstance(examples, dict) else True


def make_settings(table: Mapping[str, Any], where: str = COMMAND_LINE, tables: bool | None = None) -> Settings:
    """Make settings from names and values; what is not given is a paper's, where one is named, or that of tables.

    ``tables``: whether the data are tables of a user; None: find out from their name.
    """
    if AS in table:
        return make(Settings, expand(table), where=where)
    if tables is None:
        tables = isinstance(table.get("data"), str) and is_tables(table["data"])
    return make(Settings, with_table_defaults(table) if tables else table, where=where)
