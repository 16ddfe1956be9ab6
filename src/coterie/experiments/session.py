"""One run from its first round to its summary: train, evaluate, record and save, round by round.

Simulations and federations go through here; they differ in how clients are reached. A run can stop after any round and
be resumed, with the same results bit for bit.
"""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from coterie.algorithms import advised, keeping_momentum
from coterie.engine.metrics import metric_for
from coterie.engine.plan import available_cores
from coterie.errors import CoterieError
from coterie.experiments.apart import Apart, find_apart
from coterie.experiments.building import build_attendance, build_conditions, check_enough
from coterie.experiments.client_sketches import ClientSketches, Sketchbook, begin_sketches
from coterie.experiments.learning import Epochs, learning
from coterie.experiments.main_score import main_score
from coterie.experiments.placement import Trained
from coterie.experiments.records import DataFacts, Record, RoundRecorder
from coterie.experiments.resuming import check_frozen, check_resumable
from coterie.experiments.run_folder import APART, CONFIG, FORMAT, SCHEMA, RunFolder
from coterie.experiments.scores import ask_gradients, check_gradients
from coterie.experiments.settings import BEGAN, Settings, read_goal
from coterie.experiments.summary import (
    Row,
    client_rows,
    costs_in_models,
    evaluated_rounds,
    fedavg_bytes,
    save_clients,
    save_distances,
    summarise,
)
from coterie.experiments.warm_start import Earlier, begun_with, check_fits
from coterie.experiments.worst import worst_of
from coterie.models.model import Model
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.runtimes.attendance import Attended
from coterie.seeding import Key
from coterie.server.contract import Algorithm, State
from coterie.server.loop import Round, check_rounds, participants, rounds
from coterie.server.one_shot import formed_of
from coterie.server.serving import evaluate
from coterie.target import Target
from coterie.typing import Array

Progress = Callable[[dict[str, Any]], None]
"""Called with the record of every round."""

ShowRun = Callable[[Settings], AbstractContextManager[Progress | None]]
"""``settings -> context of a progress``: how the rounds of a run with these settings are shown."""


def unseen(settings: Settings) -> AbstractContextManager[None]:
    """Show nothing of a run."""
    return nullcontext()


Conclude = Callable[[list[Row], Record], tuple[list[Row], Record]]
"""``(rows, summary) -> (rows, summary)``: what is added at the end of a run, when its clients are no longer asked."""


class Course(NamedTuple):
    """How a run went: every client's label after every recorded round, and sketches of models, where they are kept."""

    labels: Sequence[Array] = ()
    sketches: ClientSketches | None = None


NO_COURSE = Course()


class Finished(NamedTuple):
    """The results of a finished run; ``present`` are the clients of its last round."""

    summary: Record
    history: list[Record]
    state: State
    trained: Trained
    present: Array
    course: Course = NO_COURSE


class Session:
    """One run: an algorithm, the facts about the clients' data, a network and settings.

    ``reach`` returns the federation of clients that train a network; the algorithm may extend the user's network first.
    ``before`` is the number of rounds, of ``settings.rounds`` in all, that an earlier run has trained the models for.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        facts: DataFacts,
        model: Model,
        settings: Settings,
        reach: Callable[[Model], Federation],
        before: int = 0,
    ) -> None:
        # What is trained.
        check_rounds(algorithm, settings.rounds)
        algorithm = advised(algorithm) if settings.advise else algorithm
        algorithm = keeping_momentum(algorithm) if settings.momentum_kept else algorithm
        self.algorithm, self.facts, self.settings, self.before = algorithm, facts, settings, before
        self.model, self.fedavg_bytes, self.frozen = algorithm.network(model), fedavg_bytes(model), model.frozen
        self.mix = algorithm.serve.mix if algorithm.members else None
        self.goal = None if settings.until is None else read_goal(settings.until, settings.metric)

        # Who trains it, and under which conditions.
        self.clients = reach(self.model)
        self.federation: Federation = self.clients
        self.attendance = build_attendance(settings, facts.names)
        if self.attendance is not None:
            self.federation = Attended(self.clients, self.attendance)
        self.conditions = build_conditions(settings)

        # How rounds are recorded. Models that each client fine-tunes have no common test.
        judge = None if algorithm.serve.fit else partial(self.clients.judge, mix=self.mix)
        target = Target(facts.classes, facts.columns)
        self.metric = None if settings.metric is None else metric_for(settings.metric, target)[0]
        self.recorder = RoundRecorder(facts, judge, settings.rounds, settings.weigh_by, self.metric)
        self.epochs = Epochs(algorithm.fit, facts.train, self._asked, facts.names)

        # Refuse before the first round what would fail in a later one.
        changes = [0] if self.attendance is None else self.attendance.changes()
        if self.attendance is not None:
            self.attendance.check(settings.rounds)
        check_enough(settings, self.federation, changes, algorithm)
        for fit in (fit for each in (algorithm, *algorithm.members) for fit in (each.fit, *each.serve.fit)):
            fit.check(int(facts.train.max()))
        if self.goal is not None:
            self.goal.check(facts)
        if settings.diagnose:
            check_gradients(facts.train, self.model.layout)

    def train(
        self,
        out: Path | None,
        resume: bool,
        progress: Progress | None,
        conclude: Conclude | None = None,
        earlier: Earlier | None = None,
    ) -> Finished:
        """Train, evaluate and record every round, and return the results; Ctrl-C saves the last recorded round.

        ``conclude`` adds to the clients' rows and to the summary before they are written. ``earlier``: a run whose
        models and clusters this one begins with.
        """
        if earlier is not None:
            check_fits(earlier, self.settings, self.facts, self.frozen)
        folder, state = self._open_folder(out, resume, earlier)
        history: list[Record] = [] if folder is None else folder.rounds
        labels: list[Array] = [] if folder is None else folder.labels
        book = self._sketchbook(folder, state)
        test: Replies | None = None
        kept = dict(self.clients.kept)
        steps = rounds(self.algorithm, self.federation, self.settings.seed, state, self.conditions)
        started = time.perf_counter()
        try:
            while state is None or not history or not self._is_over(state.round, history[-1]):
                step = next(steps)
                test, validation, gradients = self._evaluate(step)
                record = self.recorder.describe(step, test, validation, gradients)
                record["epochs"] = float(self.epochs.of_round(record).mean())
                now = time.perf_counter()
                record["seconds"], started = now - started, now
                over = self._is_over(step.state.round, record)
                book.add(step, over)
                if folder is None:
                    history.append(record)
                    labels.append(step.state.labels)
                else:
                    folder.add(record, step.state.labels)
                    if over or step.state.round % self.settings.checkpoint_every == 0:
                        folder.checkpoint(step.state, self.clients.kept, book.unwritten())
                state, kept = step.state, dict(self.clients.kept)
                if progress is not None:
                    before = time.perf_counter()
                    progress(record)  # what is shown or tracked is no time of the run
                    started += time.perf_counter() - before
        except CoterieError:
            if folder is not None:
                folder.abandon()
            raise
        except KeyboardInterrupt:
            if folder is not None and state is not None:
                folder.checkpoint(state, kept, book.unwritten())
            raise
        finally:
            if folder is not None:
                folder.wait()
        done = self._finish(folder, history, state, test, conclude)
        return done._replace(course=Course(labels, book.known))

    def _sketchbook(self, folder: RunFolder | None, state: State | None) -> Sketchbook:
        """Return where sketches of clients' models are kept: in simulations; a federation keeps none of its clients."""
        if self.facts.fingerprint is None:
            return Sketchbook(None)
        number = 0 if state is None else state.round
        return begin_sketches(None if folder is None else folder.path, number, len(self.facts.names))

    def _open_folder(
        self, out: Path | None, resume: bool, earlier: Earlier | None
    ) -> tuple[RunFolder | None, State | None]:
        """Create the run folder, or open it; return the state with which the run begins or resumes, if it has one."""
        if out is None:
            return None, self._first_state(earlier)
        if resume and (out / CONFIG).exists():
            check_resumable(out, self.settings, self.facts)
            check_frozen(out, self.frozen)
            folder = RunFolder(out)
            state = folder.resume()
            self.clients.kept.update(folder.kept)
            return folder, self._first_state(begun_with(out)) if state is None else state
        began = {} if earlier is None else {BEGAN: earlier.record(self.facts.names)}
        folder = RunFolder.create(out, config_table(self.settings, self.facts, self.frozen) | began)
        if self.facts.schema is not None:
            self.facts.schema.save(out / SCHEMA)
        return folder, self._first_state(earlier)

    def _first_state(self, earlier: Earlier | None) -> State | None:
        """Return the state with which the run begins; None if it begins as its algorithm does."""
        return None if earlier is None else earlier.state_for(self.algorithm, self.facts.names)

    def _asked(self, number: int) -> Array:
        """Return the clients that a round asks to train."""
        there = self.federation.present(number)
        return there[participants(len(there), self.settings.participation, Key(self.settings.seed, number))]

    def _evaluate(self, step: Round) -> tuple[Replies | None, Replies | None, Replies | None]:
        """Return the replies about test splits, validation splits and gradients; None for those not asked for.

        All clients that were present in the round are evaluated, also those that leave in the next round.
        """
        state, settings = step.state, self.settings
        if state.round % settings.eval_every and state.round <= settings.rounds - 3:
            return None, None, None
        ask = partial(
            evaluate, self.algorithm, self.clients, state, settings.seed, clients=step.there, metric=settings.metric
        )
        gradients = ask_gradients(self.clients, state, settings.seed, step.there) if settings.diagnose else None
        return ask(split="test"), ask(split="validation") if self.facts.has_validation else None, gradients

    def _is_over(self, number: int, record: Record) -> bool:
        """Return whether the run ends after this number of rounds, of which the last has this record.

        A run that stops at its goal ends with an evaluated round, so that its last record has its final scores.
        """
        if number >= self.settings.rounds:
            return True
        reached = self.settings.stop and self.goal is not None and self.goal.first([record]) is not None
        return bool(reached and evaluated_rounds([record]))

    def _finish(
        self,
        folder: RunFolder | None,
        history: list[Record],
        state: State,
        test: Replies | None,
        conclude: Conclude | None,
    ) -> Finished:
        """Summarise the run, and write its last files."""
        present, settings = self.federation.present(state.round - 1), self.settings
        if test is None:  # resumed after its last round, before the summary was written
            ask = partial(evaluate, self.algorithm, self.clients, state, settings.seed)
            test = ask(clients=present, metric=settings.metric)
        rows = client_rows(self.facts, state, test, self.attendance, self.metric)
        summary = summarise(history, settings, self.facts, state, present)
        summary |= costs_in_models(history, self.fedavg_bytes, self.before)
        score = main_score(self.facts.classes is None, settings.metric)
        summary |= learning(history, self.epochs.seen(history)) | worst_of(rows, score)
        if conclude is not None:
            rows, summary = conclude(rows, summary)
        if folder is not None:
            save_clients(folder.path, rows)
            formed = formed_of(state)
            if formed is not None and formed.distances is not None:
                save_distances(folder.path, self.facts.names, formed.distances)
            apart = self.apart(state, present)
            if apart is None:
                (folder.path / APART).unlink(missing_ok=True)
            else:
                apart.save(folder.path)
            folder.finish(summary)
        trained = Trained(self.algorithm, self.model, state, rows, settings.seed, self.facts.unit, settings.metric)
        return Finished(summary, history, state, trained, present)

    def apart(self, state: State, present: Array) -> Apart | None:
        """Return what sets the clusters apart; sites of a federation are asked for it only if the settings say so."""
        simulated = self.facts.fingerprint is not None
        wanted = simulated if self.settings.apart is None else self.settings.apart
        return find_apart(self.clients, state, self.facts, present) if wanted else None


def config_table(settings: Settings, facts: DataFacts, frozen: str = "") -> dict[str, Any]:
    """Return the content of config.toml: the settings, the form of examples, and the versions that make the run.

    ``frozen`` is the hash of the network's frozen part.
    """
    kinds = {name: getattr(facts, name) for name in ("classes", "columns", "vocabulary")}
    kind = {name: value for name, value in kinds.items() if value is not None}
    names = {"clients": list(facts.names)} if facts.partition.startswith("natural") else {}
    marks = {} if facts.fingerprint is None else {"fingerprint": facts.fingerprint, "words": facts.from_settings}
    marks |= {} if facts.files is None else {"files": facts.files}
    examples = {"shape": list(facts.shape), **kind, "unit": float(facts.unit), **names, **marks}
    threads = {} if facts.fingerprint is None else {"threads": settings.threads or available_cores()}
    made_by = {"format": FORMAT, "python": platform.python_version(), **threads, **_versions(), **_revision()}
    made_by |= {"frozen": frozen} if frozen else {}
    return {**settings.table(), "examples": examples, "made_by": made_by}


@cache
def _versions() -> dict[str, str]:
    """Return the versions of the packages that decide about numbers."""
    return {name: metadata.version(name) for name in ("coterie", "torch", "numpy", "scikit-learn")}


@cache
def _revision() -> dict[str, str]:
    """Return the git revision of the code if it runs from a checkout; it is that of the first run of a process."""
    here = Path(__file__)
    ask = partial(subprocess.run, check=True, capture_output=True, text=True, timeout=5, cwd=here.parent)
    try:
        ask(["git", "ls-files", "--error-unmatch", here.name])
        answer = ask(["git", "rev-parse", "HEAD"])
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git": answer.stdout.strip()}
