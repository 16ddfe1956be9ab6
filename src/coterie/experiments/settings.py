"""Everything needed to run an experiment again, as one value: from flags, from a TOML file, to a run folder."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from coterie.algorithms import build_algorithm, spelled_out
from coterie.algorithms.auto import AUTO
from coterie.data import (
    SUFFIXES,
    Federated,
    Reading,
    load,
    load_own,
    load_pooled,
    naturally_federated,
    parse_partition,
    sources,
)
from coterie.errors import UnknownName, UsageError
from coterie.experiments.goal import Goal, read_goal
from coterie.experiments.papers import expand
from coterie.experiments.scores import WEIGHTS
from coterie.files import read_toml
from coterie.limits import CLIENTS, LARGEST, ROUNDS, check_most
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol.replies import Combine
from coterie.protocol.task import Fit
from coterie.runtimes.attendance import Attendance, attendance
from coterie.runtimes.ray import RayFederation
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key
from coterie.server.bounds import FACTOR
from coterie.server.contract import Algorithm
from coterie.server.loop import check_rounds, participants
from coterie.server.robust import rules
from coterie.textforms import parse_one

OWN = ("label", "client", "group", "ignore", "missing", "task", "test")
"""The settings that say how a user's own files are read."""

RUNTIMES: dict[str, type[Simulator | RayFederation]] = {"simulator": Simulator, "ray": RayFederation}
"""Where clients can run."""

NOT_SET = ("made_by", "examples")
"""What a run's config.toml holds beside its settings."""


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """The options of a run. Each is a flag of the command line and a key of an experiment file, by the same name."""

    algorithm: str
    data: str = _option("digits", "a data set (coterie list data), or your own folder or file (.npz, .csv, .parquet)")
    classes: str | None = _option(None, "only these classes of the data, by name or number: a..j or 1,3,7")
    partition: str | None = _option(None, "how data are dealt to clients, e.g. 'dirichlet(0.1,10)'")
    clients: int | None = _option(None, "number of clients (40 for digits, otherwise 200)")
    clusters: int | str | None = _option(None, "number of clusters, or auto: find it (4 for digits, otherwise 10)")
    advise: bool | None = _option(None, "say whether one model is enough, and how many clusters: one more probe")
    choose: str | None = _option(None, "how clients that choose do it: exact, or race, on growing parts of their data")
    model: str | None = _option(None, "a network: 'mlp(512,128)', cnn, lenet, package.module:function")
    rounds: int = _option(20, "communication rounds")
    steps: int | None = _option(None, "local minibatch steps a round (10 unless --epochs)")
    epochs: int | None = _option(None, "local epochs a round, instead of steps")
    batch: int = _option(32, "minibatch size")
    lr: float | None = _option(None, "local learning rate (0.1 for dense nets, 0.01 for convolutions)")
    momentum: float = _option(0.9, "local momentum, reset every round")
    momentum_kept: bool | None = _option(None, "clients keep their momentum from round to round (simulations only)")
    optimizer: str = _option("sgd", "local optimiser: sgd or adam")
    weight_decay: float = _option(0.0, "local weight decay")
    lr_decay: float = _option(1.0, "factor on the learning rate after every round")
    label: str | None = _option(None, "own tables: the column to predict (label)")
    client: str | None = _option(None, "own tables: the column that names the client, for one table of all clients")
    group: str | None = _option(None, "own tables: the column of the true group, for scoring only")
    ignore: str | None = _option(None, "own tables: columns to leave out, separated by commas")
    missing: str | None = _option(None, "own tables: missing values are an error, or take the mean (error)")
    task: str | None = _option(None, "own tables: classification or regression (by the label's values)")
    test: float | None = _option(None, "own data: share of each client's examples that is set aside for testing (0.2)")
    validation: float = _option(0.0, "share of each client's train data set aside for validation")
    participation: float = _option(1.0, "share of clients asked each round")
    join: str | Mapping[str, int] | None = _option(
        None, "who joins later, e.g. '0.2@10': a share, or a name, @ the round"
    )
    leave: str | Mapping[str, int] | None = _option(None, "who leaves, e.g. '0.1@20': gone from that round on")
    min_clients: int = _option(1, "answers without which a round fails")
    norm_bound: float = _option(FACTOR, "an update so many times as long as the round's median is left out; 0: none is")
    weight_bound: float | None = _option(
        None, "a client counts as at most so many times the median of examples; 0: any (5 in a federation)"
    )
    robust: str = _option(
        "mean", "how a cluster's models become one: mean, median, trimmed(0.2), krum(1), geometric-median"
    )
    seed: int = _option(1, "the seed of everything: draw, starts, minibatches")
    eval_every: int = _option(1, "evaluate every so many rounds (the last three always)")
    until: str | None = _option(
        None, "record when a score is reached: accuracy=0.9; macro_f1, purity, ari, rmse (at most)"
    )
    stop: bool | None = _option(None, "end the run in the first evaluated round in which --until holds")
    diagnose: bool | None = _option(None, "also record clusterability from gradients, and the objective: one more pass")
    weigh_by: str = _option("test", "in scores over clients each counts by its test or its train examples")
    checkpoint_every: int = _option(1, "save the state every so many rounds")
    runtime: str = _option("simulator", "where clients run: simulator, in this process, or ray, in worker processes")
    threads: int | None = _option(None, "worker threads, or Ray workers (all cores)")
    plan: str = _option("auto", "how the engine lays work on cores: auto, single, workers, lockstep")
    device: str = _option("cpu", "torch device of the clients' work")

    def __post_init__(self) -> None:
        for name in ("rounds", "clients", "eval_every", "checkpoint_every", "min_clients"):
            _at_least(1, name, getattr(self, name))
        check_most("rounds", self.rounds, ROUNDS)
        check_most("clients", self.clients, CLIENTS)
        if isinstance(self.clusters, str) and self.clusters != AUTO:
            raise UsageError(f"clusters is {self.clusters}; it must be a whole number of at least 1, or {AUTO}")
        _at_least(1, "clusters", None if isinstance(self.clusters, str) else self.clusters)
        _at_least(0, "seed", self.seed)
        if not 0 < self.participation <= 1:
            raise UsageError(f"participation is {self.participation}; it must be in (0, 1]")
        if not 0 <= self.validation < 1:
            raise UsageError(f"validation is {self.validation}; it must be in [0, 1)")
        if not (self.norm_bound == 0 or 1 <= self.norm_bound < inf):
            raise UsageError(f"norm-bound is {self.norm_bound}; it must be a number of at least 1, or 0 to take all")
        check_most("norm-bound", self.norm_bound, LARGEST, "lower it, or give 0 to take all")
        if self.weight_bound and not 1 <= self.weight_bound < inf:
            raise UsageError(f"weight-bound is {self.weight_bound}; it must be a number of at least 1, or 0 for any")
        check_most("weight-bound", self.weight_bound, LARGEST, "lower it, or give 0 for any")
        if self.runtime not in RUNTIMES:
            raise UnknownName("runtime", self.runtime, RUNTIMES)
        if self.weigh_by not in WEIGHTS:
            raise UsageError(f"weigh-by is {self.weigh_by!r}; it must be {' or '.join(WEIGHTS)}")
        if self.momentum_kept and self.runtime != "simulator":
            raise UsageError(f"momentum-kept needs --runtime simulator, not {self.runtime}: workers keep nothing")
        self.goal()
        self.combine()
        replace(self.fit(), keeps="0" if self.momentum_kept else None)

    def goal(self) -> Goal | None:
        """The score that the run is to reach."""
        if self.until is None and self.stop:
            raise UsageError("stop is set, but nothing says when; add --until, such as --until accuracy=0.9")
        return None if self.until is None else read_goal(self.until)

    def combine(self) -> Combine | None:
        """The rule by which the models of a cluster's members become one, where it is not the weighted mean."""
        rule: Combine | None = rules.build(self.robust)
        return rule

    def completed(self) -> Settings:
        """With the defaults that depend on the data filled in."""
        if self._has_clients():
            return replace(self, partition=self.partition or "natural", clusters=self.clusters or 4)
        small = self.data == "digits"
        return replace(
            self,
            partition=self.partition or ("rotation(0,90,180,270)" if small else "dirichlet(0.1,10)"),
            clients=self.clients or (40 if small else 200),
            clusters=self.clusters or (4 if small else 10),
        )

    def fit(self) -> Fit:
        """How clients train."""
        return Fit(
            self.steps,
            self.epochs,
            self.batch,
            self.lr,
            self.momentum,
            self.optimizer,
            self.weight_decay,
            self.lr_decay,
        )

    def build_algorithm(self) -> Algorithm:
        """The algorithm, with these clusters and this local training; it must have rounds enough for what it does."""
        algorithm = build_algorithm(self.algorithm, self.completed().clusters, self.fit(), self.choose)
        check_rounds(algorithm, self.rounds)
        return algorithm

    def about_data(self) -> tuple[Any, ...]:
        """What the data depend on: settings that agree in this have the same data."""
        return tuple(
            getattr(self, name) for name in ("data", "classes", "partition", "clients", "validation", "seed", *OWN)
        )

    def build_data(self) -> Federated:
        """The federation's data."""
        full = self.completed()
        if is_own(self.data) and self._has_clients():
            self._refuse(("classes",), f"{self.data} has clients of its own: choose their rows there")
            return self._own_clients()
        self._refuse(() if is_own(self.data) else OWN, f"{self.data} is no table of yours")
        whole = load_pooled(self.data, **self.reading()) if is_own(self.data) else load(self.data)
        whole = whole if self.classes is None else whole.only(self.classes)
        return whole.partition(full.partition, full.clients, full.seed, full.validation)

    def _has_clients(self) -> bool:
        """Whether the data come with clients; a user's single file does unless it is said how to divide it."""
        undivided = is_own(self.data) and self.partition is None
        return undivided or self.client is not None or is_federated(self.data)

    def _own_clients(self) -> Federated:
        """A user's folder or table with clients of its own, so that there is nothing to deal out."""
        if self.partition not in (None, "natural"):
            raise UsageError(f"partition is {self.partition!r}, but {self.data} has clients of its own; leave it out")
        data = load_own(self.data, validation=self.validation, **self.reading())
        if self.clients not in (None, len(data)):
            raise UsageError(f"clients is {self.clients}, but {self.data} holds {len(data)}; leave it out")
        return data

    def reading(self) -> dict[str, Any]:
        """How a user's own files are read: only what was said, the reader knows the rest."""
        said = {name: getattr(self, name) for name in (*OWN, "seed") if getattr(self, name) is not None}
        return said | ({"ignore": tuple(self.ignore.split(","))} if self.ignore else {})

    def _refuse(self, names: tuple[str, ...], reason: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise UsageError(f"{name} is {getattr(self, name)}, but {reason}; leave it out")

    def build_model(self, data: Federated) -> Model:
        """The network for these data."""
        return build_model(self.model, data.shape, data.classes)

    def build_federation(self, data: Federated, model: Model) -> Simulator | RayFederation:
        """All clients, where they are to run."""
        return RUNTIMES[self.runtime](data, model, self.threads, self.plan, self.device)

    def build_attendance(self, names: tuple[str, ...]) -> Attendance:
        """Who is there in which round."""
        return attendance(names, self.seed, self.join, self.leave)

    def check_enough(self, who: Attendance, algorithm: Algorithm) -> None:
        """Somebody is there in every round, as many are asked as must answer, in one as many as clustering needs."""
        most, least = 0, max(each.least_answers for each in (algorithm, *algorithm.members))
        for number in (number for number in who.changes() if number < self.rounds):
            there = len(who.present(number))
            asked = len(participants(there, self.participation, Key(self.seed, number)))
            if not there:
                raise UsageError(f"nobody is there in round {number}; let fewer clients join late or leave")
            if self.min_clients > asked:
                raise UsageError(
                    f"min-clients is {self.min_clients}; {asked} are asked in round {number}, so 1 to {asked}"
                )
            most = max(most, asked)
        if most < least <= len(who.names):
            raise UsageError(
                f"participation is {self.participation:g}, so that at most {most} clients are asked in a round; "
                f"{algorithm.name} needs {least} answers to cluster: raise it"
            )

    def table(self) -> dict[str, Any]:
        """As a TOML table: what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def meaning(self) -> dict[str, Any]:
        """What the run is, in words that do not depend on how it was said: settings of the same run are equal in this.

        >>> one, other = Settings("wecfl", clusters=3), Settings("wecfl(3)", partition="rotation(0, 90,180,270)")
        >>> one.meaning() == other.meaning()
        True
        """
        full = self.completed()
        said = {**full.table(), **full._about_algorithm(), **full._about_own(), "data": self._place_of_data()}
        said["robust"], said["weight_bound"] = str(parse_one(full.robust)), full.weight_bound or None
        said["partition"] = _plain(lambda: parse_partition(str(full.partition)).text, str(full.partition))
        return {name: value for name, value in said.items() if value is not None and value is not False}

    def _about_algorithm(self) -> dict[str, Any]:
        """The algorithm as one text, and how its clients really train; nothing new where Python made it by hand."""
        try:
            algorithm = spelled_out(self.algorithm, self.clusters, self.fit(), self.choose)
        except UsageError:
            return {}
        known = {f.name for f in fields(self)}
        fit = {f.name: getattr(algorithm.fit, f.name) for f in fields(Fit) if f.name in known}
        steps = {} if algorithm.fit.epochs else {"steps": algorithm.fit.count(0)}
        return {**fit, **steps, "algorithm": algorithm.name, "clusters": None, "choose": None}

    def _about_own(self) -> dict[str, Any]:
        reading = Reading(**self.reading())
        return {**dict.fromkeys(OWN), **reading.words()} if is_own(self.data) else {}

    def _place_of_data(self) -> str:
        if is_own(self.data):
            return str(Path(self.data).resolve())
        return _plain(lambda: str(parse_one(self.data)), self.data)


def load_settings(path: Path, given: Mapping[str, Any]) -> Settings:
    """Settings from an experiment file or a run's config.toml; ``given`` flags override it."""
    return make_settings({**read_table(path), **given}, str(path))


def read_table(path: Path) -> dict[str, Any]:
    """What an experiment file or a run's config.toml says of settings."""
    try:
        table = read_toml(path)
    except FileNotFoundError:
        raise UsageError(f"there is no experiment file {path}; name an algorithm or an existing .toml file") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {why}; it must be a TOML file of settings") from None
    return {name: value for name, value in table.items() if name not in NOT_SET}


def in_words(path: Path) -> bool:
    """Whether a run's config.toml names its data, so that they can be made again from it."""
    examples = read_toml(path).get("examples")
    return bool(examples.get("words", True)) if isinstance(examples, dict) else True


def make_settings(table: Mapping[str, Any], where: str = "the command line") -> Settings:
    """Settings from names and values, and those of a paper where one is named; what is unknown or wrong is an error."""
    table = expand(table)
    known = {f.name: f for f in fields(Settings)}
    for name, value in table.items():
        if name not in known:
            raise UnknownName(f"setting in {where}", name, known)
        wanted = str(known[name].type).removesuffix(" | None")
        if not _fits(value, wanted):
            raise UsageError(f"{name} is {reprlib.repr(value)} in {where}; it must be {wanted}")
    if "algorithm" not in table:
        raise UsageError(f"{where} names no algorithm; add algorithm = 'wecfl', see `coterie list algorithms`")
    return Settings(**dict(table))


def is_own(data: str) -> bool:
    """Whether ``data`` means a user's own folder or file; a data set's name wins: write ./digits for a folder."""
    return data.partition("(")[0].strip() not in sources and (
        "/" in data or "\\" in data or Path(data).suffix in SUFFIXES or Path(data).is_dir()
    )


def is_federated(data: str) -> bool:
    """Whether the data come with clients of their own: a user's folder, or a naturally federated set."""
    return Path(data).is_dir() if is_own(data) else data.partition("(")[0].strip() in naturally_federated


def _plain(read: Callable[[], str], text: str) -> str:
    """A text as it is written without choice, or as it is where it cannot be read."""
    try:
        return read()
    except UsageError:
        return text


def _fits(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted.startswith("bool")
    if isinstance(value, Mapping):
        return wanted.endswith("Mapping[str, int]") and all(_fits(number, "int") for number in value.values())
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    return any(isinstance(value, kinds.get(kind, ())) for kind in wanted.split(" | "))


def _at_least(low: int, name: str, value: int | None) -> None:
    if value is not None and value < low:
        raise UsageError(f"{name.replace('_', '-')} is {value}; it must be at least {low}")
