"""One run: train, evaluate, record; resumable at any round."""

from __future__ import annotations

import platform
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from coterie.algorithms import advised
from coterie.data import Federated
from coterie.errors import CoterieError, RunFolderError, UnknownName, UsageError
from coterie.models.layout import Array
from coterie.models.mixture import Mixture
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.newcomers import Placement, Trained
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.task import Fit
from coterie.results import summary
from coterie.results.clients import client_rows, save_clients
from coterie.results.known import Known, known_of
from coterie.results.record import CONFIG, SCHEMA, RunFolder
from coterie.runtimes.attendance import Attended
from coterie.server.loop import Algorithm, Round, evaluate, rounds, served
from coterie.server.state import State
from coterie.settings import Settings, load_settings

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run."""

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    state: State
    model: Model
    data: Federated
    trained: Trained
    mix: str | None = None

    @property
    def labels(self) -> Array:
        """The cluster of every client."""
        return self.state.labels

    def model_for(self, client: int | str) -> nn.Module:
        """The network that serves a client, given by position or name, in evaluation mode."""
        if client not in (self.data.names if isinstance(client, str) else range(len(self.data))):
            raise UnknownName("client", str(client), self.data.names)
        place = self.data.names.index(client) if isinstance(client, str) else client
        stack, rows = served(self.state)
        first, *others = (self.model.with_row(stack.params[row], stack.buffers[row]) for row in rows[place])
        return first if self.mix is None else Mixture([first, *others], self.mix, self.model.classes)

    def assign(self, x: Array, y: Array) -> Placement:
        """The cluster of a client that the run has never seen, with these examples."""
        return self.trained.assign(x, y)


OPTIONS = (
    "advise",
    "participation",
    "join",
    "leave",
    "min_clients",
    "eval_every",
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
    **options: Any,
) -> Run:
    """Train an algorithm on a federation's data.

    ``options``: advise, participation, join, leave, min_clients, eval_every, checkpoint_every, runtime,
    threads, plan, device.
    How clients train is the algorithm's own: ``ct.wecfl(clusters=4, fit=ct.Fit(steps=20, lr=0.05))``.
    """
    for name in options:
        if name not in OPTIONS:
            raise UnknownName("option of run (local training is set by the algorithm's fit)", name, OPTIONS)
    built = model if isinstance(model, Model) else build_model(model, clients.shape, clients.classes)
    own = ("part", "terms", "pull", "half", "lr")
    train_options = {f.name: getattr(algorithm.fit, f.name) for f in fields(Fit) if f.name not in own}
    settings = Settings(
        algorithm.name,
        clients.data,
        clients.partition,
        clients=len(clients),
        model=built.text,
        rounds=rounds,
        seed=seed,
        lr=algorithm.fit.lr or built.default_lr,
        **train_options,
        **options,
    )
    return _simulate(algorithm, clients, built, settings, None if out is None else Path(out), False, progress)


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
    algorithm = settings.build_algorithm()
    data = settings.build_data() if data is None else data
    model = settings.build_model(data)
    full = replace(settings.completed(), model=model.text, lr=settings.lr or model.default_lr, clients=len(data))
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
            return stack.enter_context(closing(settings.build_federation(data, network)))

        session = Session(algorithm, known_of(data), model, settings, reach)
        done = session.train(out, resume, progress)
    return Run(done.summary, done.history, done.state, session.model, data, done.trained, session.mix)


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
        algorithm = advised(algorithm) if settings.advise else algorithm
        self.algorithm, self.known, self.settings = algorithm, known, settings
        self.model = algorithm.network(model)
        self.clients = reach(self.model)
        self.attendance = settings.build_attendance(known.names)
        self.federation = Attended(self.clients, self.attendance)
        self.mix = algorithm.mix if algorithm.members else None
        judge = getattr(self.clients, "judge", None)
        self.watch = summary.Watch(known, judge and partial(judge, mix=self.mix), settings.rounds)
        settings.check_enough(self.attendance)

    def train(self, out: Path | None, resume: bool, progress: Progress | None) -> Finished:
        """All rounds, recorded; a stop by Ctrl-C saves the last recorded round first."""
        folder, state = self._open(out, resume)
        history: list[dict[str, Any]] = [] if folder is None else folder.rounds
        steps = self._rounds(state)
        test: Replies | None = None
        begun = time.perf_counter()
        try:
            while state is None or state.round < self.settings.rounds:
                step = next(steps)
                if step.state.round > self.settings.rounds:
                    raise UsageError(
                        f"rounds is {self.settings.rounds}, but the warm-up of {self.algorithm.name} takes until round "
                        f"{step.state.round}; give more rounds or a shorter warm-up"
                    )
                test, validation = self._judge(step)
                record = self.watch.describe(step, test, validation)
                now = time.perf_counter()
                record["seconds"], begun = now - begun, now
                self._keep(record, step.state, folder, history)
                state = step.state
                if progress is not None:
                    progress(record)
        except CoterieError:
            if folder is not None:
                folder.abandon()
            raise
        except KeyboardInterrupt:
            if folder is not None and state is not None:
                folder.checkpoint(state)
            raise
        there = self.attendance.present(state.round - 1)
        if test is None:  # all rounds were done already, but for what follows
            test = evaluate(self.algorithm, self.clients, state, self.settings.seed, clients=there)
        rows = client_rows(self.known, state.labels, test, self.attendance)
        total = summary.summarise(history, self.settings, self.known, state, there)
        if folder is not None:
            save_clients(folder.path, rows)
            folder.finish(total)
        trained = Trained(self.algorithm, self.model, state, rows, self.settings.seed, self.known.unit)
        return Finished(total, history, state, trained)

    def _open(self, out: Path | None, resume: bool) -> tuple[RunFolder | None, State | None]:
        if out is None:
            return None, None
        if resume and (out / CONFIG).exists():
            check_same(load_settings(out / CONFIG, {}), self.settings, out)
            check_clients(out, self.known.names)
            folder = RunFolder(out)
            return folder, folder.resume()
        folder = RunFolder.create(out, config_table(self.settings, self.known))
        if self.known.schema is not None:
            self.known.schema.save(out / SCHEMA)
        return folder, None

    def _rounds(self, state: State | None) -> Iterator[Round]:
        settings = self.settings
        return rounds(
            self.algorithm, self.federation, settings.seed, state, settings.participation, settings.min_clients
        )

    def _judge(self, step: Round) -> tuple[Replies | None, Replies | None]:
        """The replies of those who were there on their test and validation splits, where the round is evaluated.

        It is measurement, so it does not matter whether they are still there in the next round.
        """
        state = step.state
        if state.round % self.settings.eval_every and state.round <= self.settings.rounds - 3:
            return None, None
        ask = partial(evaluate, self.algorithm, self.clients, state, self.settings.seed, clients=step.there)
        return ask("test"), ask("validation") if self.known.validated else None

    def _keep(
        self, record: dict[str, Any], state: State, folder: RunFolder | None, history: list[dict[str, Any]]
    ) -> None:
        if folder is None:
            history.append(record)
            return
        folder.add(record, state.labels)
        if state.round % self.settings.checkpoint_every == 0 or state.round == self.settings.rounds:
            folder.checkpoint(state)


def check_same(old: Settings, new: Settings, out: Path) -> None:
    """A run is resumed with the settings it was begun with; only its length and how it is watched may change."""
    free = {"rounds", "runtime", "threads", "plan", "device", "eval_every", "checkpoint_every"}
    before, now = old.table(), new.table()
    for name in sorted(before.keys() | now.keys()):
        if name not in free and before.get(name) != now.get(name):
            raise RunFolderError(
                f"{out} was begun with {name} = {before.get(name)}, not {now.get(name)}; "
                "go on with the same settings or give another --out"
            )


def check_clients(out: Path, names: tuple[str, ...]) -> None:
    """A run is resumed with the clients it was begun with, where they have names of their own, in the same order."""
    before = tomllib.loads((out / CONFIG).read_text()).get("examples", {}).get("clients")
    if before is not None and tuple(before) != names:
        other = sorted({*before} ^ {*names})
        what = f"differs in {', '.join(other[:5])}" if other else "has the same in another order"
        raise RunFolderError(f"{out} was begun with {len(before)} clients and this {what}; give another --out")


def config_table(settings: Settings, known: Known) -> dict[str, Any]:
    """What config.toml holds: the settings, what an example looks like, and the versions that made the run."""
    classes = {} if known.classes is None else {"classes": known.classes}
    named = {"clients": list(known.names)} if known.partition.startswith("natural") else {}
    examples = {"shape": list(known.shape), **classes, "unit": float(known.unit), **named}
    versions = {name: metadata.version(name) for name in ("coterie", "torch", "numpy", "scikit-learn")}
    made_by = {"python": platform.python_version(), **versions, **_revision()}
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
