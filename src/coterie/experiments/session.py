"""One run: train, evaluate, record; resumable at any round."""

from __future__ import annotations

import logging
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from coterie.algorithms import advised, keeping_momentum
from coterie.data import Federated
from coterie.engine.plan import available_cores
from coterie.errors import CoterieError, FederationError, RunFolderError, UnknownName
from coterie.experiments import building
from coterie.experiments import records as summary
from coterie.experiments.clients import client_rows, save_clients, save_distances
from coterie.experiments.data_facts import Known, known_of
from coterie.experiments.diagnostics import ask_gradients, check_gradients
from coterie.experiments.last_rounds import judged
from coterie.experiments.placement import Placement, Trained
from coterie.experiments.records import fedavg_unit, in_models
from coterie.experiments.run_folder import CONFIG, FORMAT, SCHEMA, RunFolder, check_begun, load_config
from coterie.experiments.settings import Settings, in_words, load_settings
from coterie.models.combined import Mixture
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.task import Fit
from coterie.runtimes.attendance import Attended
from coterie.runtimes.simulator import Simulator
from coterie.server.contract import Algorithm, State
from coterie.server.exchange import Limits
from coterie.server.loop import Conditions, Round, check_rounds, rounds
from coterie.server.one_shot import formed_of
from coterie.server.serving import Served, evaluate, served_models
from coterie.typing import Array

Progress = Callable[[dict[str, Any]], None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run."""

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    state: State
    model: Model
    data: Federated
    trained: Trained
    settings: Settings
    mix: str | None = None

    def __repr__(self) -> str:
        told, score = self.summary, "accuracy" if "accuracy" in self.summary else "rmse"
        return (
            f"Run({told['algorithm']} on {told['data']}, {told['partition']}: {told['clients']} clients, "
            f"{told['rounds']} rounds, {told['clusters_found']} clusters, {score} {told[score] or float('nan'):.3f})"
        )

    @property
    def labels(self) -> Array:
        """The cluster of every client."""
        return self.state.labels

    def model_for(self, client: int | str) -> nn.Module:
        """The network that a client, given by position or name, was tested with last, in evaluation mode.

        What it does before a test, such as choosing again or fine-tuning, is done again in the same way. A client that
        was not there in the last round gets what it would have been served.
        """
        if client not in (self.data.names if isinstance(client, str) else range(len(self.data))):
            raise UnknownName("client", str(client), self.data.names)
        place = self.data.names.index(client) if isinstance(client, str) else client
        tested, places = self._tested
        found, at = (tested, places[place]) if place in places else (self._hand_over(np.array([place])), 0)
        if min(member.rows[at] for member in found) < 0:
            raise FederationError(
                f"client {self.data.names[place]!r} has no model: it diverged; lower the learning rate"
            )
        rows = [(member.models, member.rows[at]) for member in found]
        first, *others = (self.model.with_row(stack.params[row], stack.buffers[row]) for stack, row in rows)
        return first if self.mix is None else Mixture([first, *others], self.mix, self.model.classes)

    @cached_property
    def _tested(self) -> tuple[list[Served], dict[int, int]]:
        """The models of those who were tested last, asked together as they were then, and where each of them is."""
        there = building.build_attendance(self.settings, self.data.names).present(self.state.round - 1)
        return self._hand_over(there), {client: at for at, client in enumerate(there.tolist())}

    def _hand_over(self, clients: Array) -> list[Served]:
        how = self.settings
        simulator = Simulator(self.data, self.model, how.threads, how.plan, how.device)
        return served_models(self.trained.algorithm, simulator, self.state, how.seed, clients)

    def assign(self, x: Array, y: Array) -> Placement:
        """The cluster of a client that the run has never seen, with these examples."""
        return self.trained.assign(x, y)


OPTIONS = (
    "advise",
    "participation",
    "join",
    "leave",
    "min_clients",
    "norm_bound",
    "weight_bound",
    "robust",
    "momentum_kept",
    "eval_every",
    "until",
    "stop",
    "diagnose",
    "weigh_by",
    "checkpoint_every",
    "runtime",
    "threads",
    "plan",
    "device",
)
"""The settings of a run that concern neither algorithm, data, model nor local training."""


def run(
    algorithm: Algorithm,
    clients: Federated,
    model: str | Model | None = None,
    rounds: int = 20,
    seed: int = 1,
    progress: Progress | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Train an algorithm on a federation's data; with ``resume`` go on where the run in ``out`` stopped.

    ``options``: advise, participation, join, leave, min_clients, norm_bound, weight_bound, robust, momentum_kept,
    eval_every, until, stop, diagnose, weigh_by, checkpoint_every, runtime, threads, plan, device.
    How clients train is the algorithm's own: ``ct.wecfl(clusters=4, fit=ct.Fit(steps=20, lr=0.05))``.
    """
    for name in options:
        if name not in OPTIONS:
            raise UnknownName("option of run (local training is set by the algorithm's fit)", name, OPTIONS)
    built = model if isinstance(model, Model) else build_model(model, clients.shape, clients.classes)
    own = ("part", "terms", "pull", "half", "keeps", "lr")
    train_options = {f.name: getattr(algorithm.fit, f.name) for f in fields(Fit) if f.name not in own}
    words = {"data": clients.data, "partition": clients.partition, **(clients.words or {})}
    settings = Settings(
        algorithm.name,
        **words,
        clients=len(clients),
        model=built.text,
        rounds=rounds,
        seed=seed,
        lr=algorithm.fit.lr or built.default_lr,
        **train_options,
        **options,
    )
    return _simulate(algorithm, clients, built, settings, None if out is None else Path(out), resume, progress)


def run_settings(
    settings: Settings,
    out: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    data: Federated | None = None,
) -> Run:
    """Build everything that the settings name, and train; with ``resume`` go on where ``out`` stopped.

    ``data`` are those of the settings, where they have been built already.
    """
    algorithm = building.build_algorithm(settings)
    data = building.build_data(settings) if data is None else data
    model = building.build_model(settings, data)
    full = replace(
        building.completed(settings), model=model.text, lr=settings.lr or model.default_lr, clients=len(data)
    )
    return _simulate(algorithm, data, model, full, out, resume, progress)


def _simulate(
    algorithm: Algorithm,
    data: Federated,
    model: Model,
    settings: Settings,
    out: Path | None,
    resume: bool,
    progress: Progress | None,
) -> Run:
    with ExitStack() as stack:

        def reach(network: Model) -> Federation:
            return stack.enter_context(closing(building.build_federation(settings, data, network)))

        session = Session(algorithm, known_of(data), model, settings, reach)
        done = session.train(out, resume, progress)
    return Run(done.summary, done.history, done.state, session.model, data, done.trained, settings, session.mix)


class Finished(NamedTuple):
    """What all rounds of a run gave."""

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    state: State
    trained: Trained


class Session:
    """One run while it goes on, with clients that are reached in any way: ``reach`` gives them a network to train."""

    def __init__(
        self,
        algorithm: Algorithm,
        known: Known,
        model: Model,
        settings: Settings,
        reach: Callable[[Model], Federation],
    ) -> None:
        check_rounds(algorithm, settings.rounds)
        algorithm = advised(algorithm) if settings.advise else algorithm
        algorithm = keeping_momentum(algorithm) if settings.momentum_kept else algorithm
        self.algorithm, self.known, self.settings = algorithm, known, settings
        self.unit, self.model = fedavg_unit(model), algorithm.network(model)
        self.clients = reach(self.model)
        self.attendance = building.build_attendance(settings, known.names)
        self.federation = Attended(self.clients, self.attendance)
        self.mix = algorithm.serve.mix if algorithm.members else None
        # A model that is fine-tuned by each client has no common test.
        general = None if algorithm.serve.fit else partial(self.clients.judge, mix=self.mix)
        self.watch = summary.Watch(known, general, settings.rounds, settings.weigh_by)
        building.check_enough(settings, self.attendance, algorithm)
        for fit in (fit for each in (algorithm, *algorithm.members) for fit in (each.fit, *each.serve.fit)):
            fit.check(int(known.train.max()))
        self.goal = settings.goal()
        if self.goal is not None:
            self.goal.check(known)
        if settings.diagnose:
            check_gradients(known, self.model.layout)

    def train(self, out: Path | None, resume: bool, progress: Progress | None) -> Finished:
        """All rounds, recorded; a stop by Ctrl-C saves the last recorded round first."""
        folder, state = self._open(out, resume)
        history: list[dict[str, Any]] = [] if folder is None else folder.rounds
        steps = self._rounds(state)
        test: Replies | None = None
        kept = dict(self._kept)
        begun = time.perf_counter()
        try:
            while state is None or not self._ends(state.round, history[-1]):
                step = next(steps)
                test, *others = self._judge(step)
                record = self.watch.describe(step, test, *others)
                now = time.perf_counter()
                record["seconds"], begun = now - begun, now
                self._keep(record, step.state, folder, history)
                state, kept = step.state, dict(self._kept)
                if progress is not None:
                    progress(record)
        except CoterieError:
            if folder is not None:
                folder.abandon()
            raise
        except KeyboardInterrupt:
            if folder is not None and state is not None:
                folder.checkpoint(state, kept)
            raise
        there = self.attendance.present(state.round - 1)
        if test is None:  # all rounds were done already, but for what follows
            test = evaluate(self.algorithm, self.clients, state, self.settings.seed, clients=there)
        rows = client_rows(self.known, state.labels, test, self.attendance)
        total = summary.summarise(history, self.settings, self.known, state, there) | in_models(history, self.unit)
        if folder is not None:
            save_clients(folder.path, rows)
            formed = formed_of(state)
            if formed is not None and formed.distances is not None:
                save_distances(folder.path, self.known.names, formed.distances)
            folder.finish(total)
        trained = Trained(self.algorithm, self.model, state, rows, self.settings.seed, self.known.unit)
        return Finished(total, history, state, trained)

    @property
    def _kept(self) -> dict[str, Array]:
        """What clients keep to themselves between rounds, where that is here; sites keep nothing."""
        return self.clients.kept

    def _open(self, out: Path | None, resume: bool) -> tuple[RunFolder | None, State | None]:
        if out is None:
            return None, None
        if resume and (out / CONFIG).exists():
            check_begun(out)
            check_worded(out, self.known)
            check_same(load_settings(out / CONFIG, {}), self.settings, out)
            check_examples(out, self.known)
            if self.known.fingerprint is not None:
                tell_laid(out, self.settings)
            folder = RunFolder(out)
            state = folder.resume()
            self._kept.update(folder.kept)
            return folder, state
        folder = RunFolder.create(out, config_table(self.settings, self.known))
        if self.known.schema is not None:
            self.known.schema.save(out / SCHEMA)
        return folder, None

    def _rounds(self, state: State | None) -> Iterator[Round]:
        how = self.settings
        limits = Limits(norm_bound=how.norm_bound, weight_bound=how.weight_bound or 0, combine=how.combine())
        conditions = Conditions(participation=how.participation, min_clients=how.min_clients, limits=limits)
        return rounds(self.algorithm, self.federation, how.seed, state, conditions)

    def _judge(self, step: Round) -> tuple[Replies | None, Replies | None, Replies | None]:
        """The replies of those who were there on their test and validation splits and on their gradients, if asked for.

        It is measurement, so it does not matter whether they are still there in the next round.
        """
        state = step.state
        if state.round % self.settings.eval_every and state.round <= self.settings.rounds - 3:
            return None, None, None
        ask = partial(evaluate, self.algorithm, self.clients, state, self.settings.seed, clients=step.there)
        found = partial(ask_gradients, self.clients, state, self.settings.seed, step.there)
        gradients = found() if self.settings.diagnose else None
        return ask(split="test"), ask(split="validation") if self.known.validated else None, gradients

    def _keep(
        self, record: dict[str, Any], state: State, folder: RunFolder | None, history: list[dict[str, Any]]
    ) -> None:
        if folder is None:
            history.append(record)
            return
        folder.add(record, state.labels)
        if state.round % self.settings.checkpoint_every == 0 or self._ends(state.round, record):
            folder.checkpoint(state, self._kept)

    def _ends(self, number: int, record: dict[str, Any]) -> bool:
        """Whether so many rounds, of which this is the last record, are all: in number, or since the goal is reached.

        A run ends with a round that was evaluated, so that its last record says how it ended.
        """
        reached = self.settings.stop and self.goal is not None and self.goal.holds(record) and judged([record])
        return number >= self.settings.rounds or bool(reached)


def check_same(old: Settings, new: Settings, out: Path) -> None:
    """A run is resumed with the settings it was begun with; only its length and how it is watched may change."""
    free = {"rounds", "runtime", "threads", "plan", "device", "eval_every", "checkpoint_every"}
    before, now = building.meaning(old), building.meaning(new)
    for name in sorted(before.keys() | now.keys()):
        if name not in free and before.get(name) != now.get(name):
            raise RunFolderError(
                f"{out} was begun with {name} = {before.get(name)}, not {now.get(name)}; "
                "go on with the same settings or give another --out"
            )


def tell_laid(out: Path, settings: Settings) -> None:
    """Say that a run is gone on with on other threads or by another plan: sums in another order round otherwise."""
    config, now = load_config(out), laid(settings)
    before = {**now, **{name: config[name] for name in now if name in config}}
    before["threads"] = config["made_by"].get("threads", before["threads"])
    other = [f"{name} = {now[name]}, not {before[name]}" for name in now if now[name] != before[name]]
    if other:
        _log.warning(
            "%s goes on with %s: its numbers may differ in their last bits from those of an unbroken run",
            out,
            " and ".join(other),
        )


def laid(settings: Settings) -> dict[str, Any]:
    """How a simulation's work is laid on the machine."""
    names = ("runtime", "plan", "device")
    return {"threads": settings.threads or available_cores(), **{name: getattr(settings, name) for name in names}}


def check_worded(out: Path, known: Known) -> None:
    """A run on data that Python made by hand is resumed in Python: no settings name such data."""
    if known.worded and not in_words(out / CONFIG):
        raise RunFolderError(
            f"{out} was begun in Python on data that no setting names; go on there: ct.run(..., resume=True)"
        )


def check_examples(out: Path, known: Known) -> None:
    """A run is resumed with the data it was begun with: clients of their own names, in order, and their examples."""
    examples = load_config(out)["examples"]
    before = examples.get("clients")
    if before is not None and tuple(before) != known.names:
        other = sorted({*before} ^ {*known.names})
        what = f"differs in {', '.join(other[:5])}" if other else "has the same in another order"
        raise RunFolderError(f"{out} was begun with {len(before)} clients and this {what}; give another --out")
    if known.fingerprint is not None and examples.get("fingerprint", known.fingerprint) != known.fingerprint:
        raise RunFolderError(
            f"{out} was begun on other examples than these of {known.data}, perhaps drawn with another seed; "
            "go on with the same data or give another --out"
        )
    check_files(out, known.files, known.data)


def check_files(out: Path, files: str | None, data: str) -> None:
    """A run is taken only with the user's own files that it was begun with, of which this is the hash, if known."""
    if files is not None and load_config(out)["examples"].get("files", files) != files:
        raise RunFolderError(
            f"{out} was begun on other files than those of {data} now: they were changed since; "
            "go on with the files as they were, or give another --out"
        )


def config_table(settings: Settings, known: Known) -> dict[str, Any]:
    """What config.toml holds: the settings, what an example looks like, and the versions that made the run."""
    classes = {} if known.classes is None else {"classes": known.classes}
    named = {"clients": list(known.names)} if known.partition.startswith("natural") else {}
    marks = {} if known.fingerprint is None else {"fingerprint": known.fingerprint, "words": known.worded}
    marks |= {} if known.files is None else {"files": known.files}
    examples = {"shape": list(known.shape), **classes, "unit": float(known.unit), **named, **marks}
    versions = {name: metadata.version(name) for name in ("coterie", "torch", "numpy", "scikit-learn")}
    threads = {} if known.fingerprint is None else {"threads": laid(settings)["threads"]}
    made_by = {"format": FORMAT, "python": platform.python_version(), **threads, **versions, **_revision()}
    return {**settings.table(), "examples": examples, "made_by": made_by}


def _revision() -> dict[str, str]:
    """The git revision of the code, where it runs from a checkout of its own."""
    here = Path(__file__)
    ask = partial(subprocess.run, check=True, capture_output=True, text=True, timeout=5, cwd=here.parent)
    try:
        ask(["git", "ls-files", "--error-unmatch", here.name])
        answer = ask(["git", "rev-parse", "HEAD"])
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git": answer.stdout.strip()}
