"""Run an experiment in a simulation: from Python values, or from settings."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from coterie.data import Federated
from coterie.errors import FederationError, UnknownName
from coterie.experiments import building
from coterie.experiments.data_facts import facts_of
from coterie.experiments.placement import Placement, Trained
from coterie.experiments.session import Progress, Session
from coterie.experiments.settings import Settings
from coterie.models.combined import Mixture
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol.federation import Federation
from coterie.protocol.task import Fit
from coterie.runtimes.simulator import Simulator
from coterie.server.contract import Algorithm, State
from coterie.server.serving import Served, served_models
from coterie.typing import Array


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

        session = Session(algorithm, facts_of(data), model, settings, reach)
        done = session.train(out, resume, progress)
    return Run(done.summary, done.history, done.state, session.model, data, done.trained, settings, session.mix)
