"""One run while it goes on: train, evaluate, record, save; resumable at any round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from coterie.algorithms import advised, keeping_momentum
from coterie.errors import CoterieError
from coterie.experiments import building, records
from coterie.experiments.clients import client_rows, save_clients, save_distances
from coterie.experiments.data_facts import DataFacts
from coterie.experiments.diagnostics import ask_gradients, check_gradients
from coterie.experiments.last_rounds import judged
from coterie.experiments.placement import Trained
from coterie.experiments.records import fedavg_unit, in_models
from coterie.experiments.resuming import check_examples, check_same, check_worded, config_table, tell_laid
from coterie.experiments.run_folder import CONFIG, SCHEMA, RunFolder, check_begun
from coterie.experiments.settings import Settings, load_settings
from coterie.models.model import Model
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.runtimes.attendance import Attended
from coterie.server.contract import Algorithm, State
from coterie.server.exchange import Limits
from coterie.server.loop import Conditions, Round, check_rounds, rounds
from coterie.server.one_shot import formed_of
from coterie.server.serving import evaluate
from coterie.typing import Array

Progress = Callable[[dict[str, Any]], None]
"""Called with the record of every round."""


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
        known: DataFacts,
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
        self.recorder = records.RoundRecorder(known, general, settings.rounds, settings.weigh_by)
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
                record = self.recorder.describe(step, test, *others)
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
        total = records.summarise(history, self.settings, self.known, state, there) | in_models(history, self.unit)
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
