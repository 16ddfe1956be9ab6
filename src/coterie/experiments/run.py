"""Simulations: run an experiment from Python values, or from settings."""

from __future__ import annotations

from collections.abc import Mapping
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
    """The results of a finished run.

    summary   one number or text per key, as in ``summary.json``
    history   the records of all rounds, as in ``rounds.jsonl``
    state     the models and labels after the last round
    model     the network that was trained
    data      the clients' data
    trained   the parts of the run that place newcomers
    mix       how the outputs of an ensemble become one; None if there is one model
    """

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    state: State
    model: Model
    data: Federated
    trained: Trained
    settings: Settings
    mix: str | None = None

    def __repr__(self) -> str:
        found, score = self.summary, "accuracy" if "accuracy" in self.summary else "rmse"
        return (
            f"Run({found['algorithm']} on {found['data']}, {found['partition']}: {found['clients']} clients, "
            f"{found['rounds']} rounds, {found['clusters_found']} clusters, {score} {found[score] or float('nan'):.3f})"
        )

    @property
    def labels(self) -> Array:
        """Return the cluster of every client."""
        return self.state.labels

    def model_for(self, client: int | str) -> nn.Module:
        """Return the network with which a client, given by position or name, was last tested, in evaluation mode.

        Steps before a test, such as choosing again or fine-tuning, are repeated. A client that was absent in the last
        round gets the network that would have served it.
        """
        if client not in (self.data.names if isinstance(client, str) else range(len(self.data))):
            raise UnknownName("client", str(client), self.data.names)
        position = self.data.names.index(client) if isinstance(client, str) else client
        present, served = self._last_served
        at = int(np.searchsorted(present, position))
        if position not in present:
            served, at = self._serve(np.array([position])), 0
        if min(member.rows[at] for member in served) < 0:
            raise FederationError(
                f"client {self.data.names[position]!r} has no model: it diverged; lower the learning rate"
            )
        rows = [(member.models, member.rows[at]) for member in served]
        first, *others = (self.model.with_row(stack.params[row], stack.buffers[row]) for stack, row in rows)
        return first if self.mix is None else Mixture([first, *others], self.mix, self.model.classes)

    @cached_property
    def _last_served(self) -> tuple[Array, list[Served]]:
        """Return the clients that were present in the last round, and the models that serve them."""
        present = building.build_attendance(self.settings, self.data.names).present(self.state.round - 1)
        return present, self._serve(present)

    def _serve(self, clients: Array) -> list[Served]:
        settings = self.settings
        simulator = Simulator(self.data, self.model, settings.threads, plan=settings.plan, device=settings.device)
        return served_models(self.trained.algorithm, simulator, self.state, settings.seed, clients)

    def assign(self, x: Array, y: Array | None = None, attributes: Mapping[str, str] | None = None) -> Placement:
        """Place a client that took no part in the run, with these examples; see ``Trained.assign``."""
        return self.trained.assign(x, y, attributes)


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
"""Settings of a run that concern neither the algorithm, the data, the model nor local training."""


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
    """Train an algorithm on the data of clients; with ``resume`` continue the run in ``out``.

    ``options``: advise, participation, join, leave, min_clients, norm_bound, weight_bound, robust, momentum_kept,
    eval_every, until, stop, diagnose, weigh_by, checkpoint_every, runtime, threads, plan, device.
    Local training is set by the algorithm: ``ct.wecfl(clusters=4, fit=ct.Fit(steps=20, lr=0.05))``.
    """
    for name in options:
        if name not in OPTIONS:
            raise UnknownName("option of run (local training is set by the algorithm's fit)", name, OPTIONS)
    built = model if isinstance(model, Model) else build_model(model, clients.shape, clients.classes)
    no_settings = ("part", "terms", "pull", "half", "keeps", "lr")
    local_training = {f.name: getattr(algorithm.fit, f.name) for f in fields(Fit) if f.name not in no_settings}
    words = {"data": clients.data, "partition": clients.partition, **(clients.words or {})}
    settings = Settings(
        algorithm.name,
        **words,
        clients=len(clients),
        model=built.text,
        rounds=rounds,
        seed=seed,
        lr=algorithm.fit.lr or built.default_lr,
        **local_training,
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
    """Build what the settings name, and train; with ``resume`` continue the run in ``out``.

    ``data``: the data of these settings, if they are built already.
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
