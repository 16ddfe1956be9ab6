"""Simulations: train on clients of this machine, from settings or from what is built already."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.data import Federated
from coterie.data.named import is_own
from coterie.experiments import building
from coterie.experiments.conclusion import Conclusion
from coterie.experiments.guessing import guesses_of
from coterie.experiments.placement import Trained
from coterie.experiments.records import facts_of
from coterie.experiments.session import NO_COURSE, Course, Progress, Session, ShowRun, unseen
from coterie.experiments.settings import Settings
from coterie.experiments.summary import Row
from coterie.experiments.tracked import Track, untracked
from coterie.experiments.warm_start import Earlier, rounds_before, with_rounds
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.protocol.federation import Federation
from coterie.runtimes.ray import RayFederation
from coterie.runtimes.simulator import Simulator
from coterie.server.contract import Algorithm, State
from coterie.typing import Array


@dataclass(frozen=True)
class Results:
    """The results of a finished run.

    summary   one number or text per key, as in ``summary.json``
    history   the records of all rounds, as in ``rounds.jsonl``
    state     the models and labels after the last round
    model     the network that was trained
    data      the clients' data
    trained   the parts of the run that place newcomers
    present   the clients of the last round
    mix       how the outputs of an ensemble become one; None if there is one model
    course    labels by round, and sketches of clients' models
    """

    summary: dict[str, Any]
    history: list[dict[str, Any]]
    state: State
    model: Model
    data: Federated
    trained: Trained
    settings: Settings
    present: Array
    mix: str | None = None
    course: Course = NO_COURSE


RUNTIMES: dict[str, type[Simulator | RayFederation]] = {"simulator": Simulator, "ray": RayFederation}
"""Where clients can run."""


def run_settings(
    settings: Settings,
    out: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    data: Federated | None = None,
    model: Model | None = None,
    show: ShowRun = unseen,
    earlier: Earlier | None = None,
    track: Track = untracked,
) -> Results:
    """Build what the settings name, and train; with ``resume`` continue the run in ``out``.

    ``data`` and ``model``: those of these settings, if they are built already. ``show`` shows the rounds of references.
    ``earlier``: a finished run whose models and clusters this one begins with; ``rounds`` are then further ones.
    ``track`` tells the trackers that the settings name.
    """
    settings = with_rounds(settings, rounds_before(out, resume, earlier))
    algorithm = building.build_algorithm(settings)
    data = building.build_data(settings) if data is None else data
    if model is None:
        model = build_model(settings.model, data.shape, data.classes, data.columns, data.vocabulary)
    full = replace(
        building.completed(settings), model=model.text, lr=settings.lr or model.default_lr, clients=len(data)
    )
    return simulate(algorithm, data, model, full, out, resume, progress, show, earlier, track)


def simulate(
    algorithm: Algorithm,
    data: Federated,
    model: Model,
    settings: Settings,
    out: Path | None,
    resume: bool,
    progress: Progress | None,
    show: ShowRun = unseen,
    earlier: Earlier | None = None,
    track: Track = untracked,
) -> Results:
    """Train on clients of this machine, which are ended with the run, and reach a verdict."""
    facts = facts_of(data)
    with track(settings, out) as sink, ExitStack() as stack:

        def reach(network: Model) -> Federation:
            start = RUNTIMES[settings.runtime]
            clients = start(data, network, settings.threads, plan=settings.plan, device=settings.device)
            return stack.enter_context(closing(clients))

        def train_reference(other: Settings, folder: Path | None, report: Progress | None) -> Sequence[Row]:
            stack.close()  # two sets of Ray's workers would wait for each other
            return simulate(building.build_algorithm(other), data, model, other, folder, True, report).trained.members

        conclude = Conclusion(
            facts=facts,
            settings=settings,
            guesses=guesses_of(data, settings.metric),
            own=data.schema is not None or is_own(settings.data),
            out=out,
            make=train_reference,
            show=show,
        )
        before = rounds_before(out, resume, earlier)
        session = Session(algorithm, facts, model, settings, reach, before)
        done = session.train(out, resume, sink.beside(progress), conclude, earlier)
        sink.finished(done.summary)
    return Results(
        summary=done.summary,
        history=done.history,
        state=done.state,
        model=session.model,
        data=data,
        trained=done.trained,
        settings=settings,
        present=done.present,
        mix=session.mix,
        course=done.course,
    )
