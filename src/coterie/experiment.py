"""One run: train, evaluate, record; resumable at any round."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import nn

from coterie.data import Federated
from coterie.errors import RunFolderError, UnknownName
from coterie.models.layout import Array
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.results import summary
from coterie.results.record import CONFIG, RunFolder
from coterie.runtimes.simulator import Simulator
from coterie.server.loop import Algorithm, Round, evaluate, rounds, with_mean
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

    @property
    def labels(self) -> Array:
        """The cluster of every client."""
        return self.state.labels

    def model_for(self, client: int | str) -> nn.Module:
        """The network that serves a client, given by position or name, in evaluation mode."""
        if client not in (self.data.names if isinstance(client, str) else range(len(self.data))):
            raise UnknownName("client", str(client), self.data.names)
        place = self.data.names.index(client) if isinstance(client, str) else client
        stack, rows = with_mean(self.state.stack, self.labels[[place]], self.state.shares)
        return self.model.with_row(stack.params[rows[0]], stack.buffers[rows[0]])


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

    ``options`` are the remaining settings of a run that do not concern data, model or local training: participation,
    eval_every, checkpoint_every, min_clients, threads, plan, device.
    """
    settings = Settings(algorithm.name, clients.data, clients.partition, rounds=rounds, seed=seed, **options)
    built = model if isinstance(model, Model) else build_model(model, clients.shape, clients.classes)
    folder = None if out is None else RunFolder.create(Path(out), config_table(settings))
    return train(algorithm, clients, built, settings, folder, None, progress)


def run_settings(
    settings: Settings, out: Path | None = None, resume: bool = False, progress: Progress | None = None
) -> Run:
    """Build everything that the settings name, and train; with ``resume`` go on where ``out`` stopped."""
    algorithm = settings.build_algorithm()
    data = settings.build_data()
    model = settings.build_model(data)
    full = replace(settings.completed(), model=model.text, lr=settings.lr or model.default_lr, clients=len(data))
    folder, state = None, None
    if out is not None:
        if resume and (out / CONFIG).exists():
            folder = RunFolder(out)
            check_same(load_settings(out / CONFIG, {}), full, out)
            state = folder.resume()
        else:
            folder = RunFolder.create(out, config_table(full))
    return train(algorithm, data, model, full, folder, state, progress)


def train(
    algorithm: Algorithm,
    data: Federated,
    model: Model,
    settings: Settings,
    folder: RunFolder | None,
    state: State | None,
    progress: Progress | None,
) -> Run:
    """The rounds of one run, recorded; a stop by Ctrl-C saves the last full round first."""
    federation = Simulator(data, model, settings.threads, settings.plan, settings.device)
    watch = summary.Watch(data, federation.engine)
    history: list[dict[str, Any]] = [] if folder is None else folder.rounds
    went_on = _rounds_of(algorithm, federation, settings, state)
    begun = time.perf_counter()
    try:
        while state is None or state.round < settings.rounds:
            step = next(went_on)
            state = step.state
            record = watch.describe(step, *_judged(algorithm, federation, step, settings))
            now = time.perf_counter()
            record["seconds"], begun = now - begun, now
            _keep(record, step, folder, history, settings)
            if progress is not None:
                progress(record)
    except KeyboardInterrupt:
        if folder is not None and state is not None and len(folder.labels):
            folder.checkpoint(state)
        raise
    assert state is not None
    total = summary.summarise(history, settings, data, state)
    if folder is not None:
        folder.finish(total)
    return Run(total, history, state, model, data)


def _rounds_of(algorithm: Algorithm, federation: Simulator, settings: Settings, state: State | None) -> Iterator[Round]:
    """The endless rounds of these settings."""
    least = min(settings.min_clients, len(federation.names))
    return rounds(algorithm, federation, settings.seed, state, settings.participation, least)


def _judged(
    algorithm: Algorithm, federation: Simulator, step: Round, settings: Settings
) -> tuple[Array | None, Array | None]:
    """Every client's metrics and served labels this round, where it is one that is evaluated."""
    done = step.state.round
    if done % settings.eval_every and done <= settings.rounds - 3:
        return None, None
    replies = evaluate(algorithm, federation, step.state, settings.seed)
    return replies.metrics, replies.labels


def _keep(
    record: dict[str, Any], step: Round, folder: RunFolder | None, history: list[dict[str, Any]], settings: Settings
) -> None:
    if folder is None:
        history.append(record)
        return
    folder.add(record, step.state.labels)
    if step.state.round % settings.checkpoint_every == 0 or step.state.round == settings.rounds:
        folder.checkpoint(step.state)


def check_same(old: Settings, new: Settings, out: Path) -> None:
    """A run is resumed with the settings it was begun with; only its length and how it is watched may change."""
    free = {"rounds", "threads", "plan", "device", "eval_every", "checkpoint_every"}
    for name, value in old.table().items():
        if name not in free and new.table().get(name) != value:
            raise RunFolderError(
                f"{out} was begun with {name} = {value}, not {new.table().get(name)}; "
                "resume with the same settings or give another --out"
            )


def config_table(settings: Settings) -> dict[str, Any]:
    """What config.toml holds: the settings, and the versions that made the run."""
    versions = {name: metadata.version(name) for name in ("coterie", "torch", "numpy", "scikit-learn")}
    return {**settings.table(), "made_by": {"python": platform.python_version(), **versions, **_revision()}}


def _revision() -> dict[str, str]:
    """The git revision of the code, where it runs from a checkout."""
    try:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"git": answer.stdout.strip()}
