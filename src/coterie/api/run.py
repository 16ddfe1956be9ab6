"""Runs in Python: train an algorithm on clients, load a run from its folder, and use what was learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from coterie.api.exports import export_run
from coterie.api.settings import given_data, python_settings
from coterie.arguments import checked
from coterie.data import Federated
from coterie.data.given.arrays import as_numbers
from coterie.errors import DataError, RunFolderError, UnknownName, UsageError
from coterie.experiments import building
from coterie.experiments.apart import Apart, find_apart
from coterie.experiments.client_sketches import load_sketches
from coterie.experiments.main_score import score_of
from coterie.experiments.networks import mean_network
from coterie.experiments.placement import Placement, load_trained
from coterie.experiments.records import facts_of
from coterie.experiments.resuming import check_examples
from coterie.experiments.run import Results, simulate
from coterie.experiments.run_folder import CONFIG, load_labels, load_rounds, load_summary, no_finished_run
from coterie.experiments.served_run import ServedRun
from coterie.experiments.session import Course, Progress, ShowRun, unseen
from coterie.experiments.settings import Settings, in_words, load_settings
from coterie.models.given import Given
from coterie.models.model import Model
from coterie.reporting.html import html_pairs
from coterie.reporting.plots import svg
from coterie.reporting.progress import watch_with_references
from coterie.reporting.report.page import write_report
from coterie.reporting.run_plots import RunPlots
from coterie.runtimes.attendance import Attended
from coterie.runtimes.simulator import Simulator
from coterie.server.contract import Algorithm, State
from coterie.server.loop import rounds
from coterie.tracking.track import track
from coterie.typing import Array

BATCH = 4096
"""Examples that one forward pass of a prediction takes."""


@dataclass(frozen=True)
class Run:
    """A finished run: its numbers, its models, and what can be done with them.

    summary   one number or text per key, as in ``summary.json``
    history   the records of all rounds, as in ``rounds.jsonl``
    labels    the cluster of every client
    state     the models and labels after the last round
    data      the clients' data
    settings  the settings that make the run again
    folder    where it was saved, or None
    """

    results: Results
    folder: Path | None = None

    def __repr__(self) -> str:
        found, score = self.summary, score_of(self.summary)
        return (
            f"Run({found['algorithm']} on {found['data']}, {found['partition']}: {found['clients']} clients, "
            f"{found['rounds']} rounds, {found['clusters_found']} clusters, "
            f"{score.name} {found[score.column] or float('nan'):.3f})"
        )

    @property
    def summary(self) -> dict[str, Any]:
        """Return one number or text per key, as in ``summary.json``."""
        return self.results.summary

    @property
    def verdict(self) -> dict[str, Any]:
        """Return whether the models beat guessing, one model and local models, as in ``summary.json``.

        ``verdict["text"]`` says it in words; one model and local models are compared with ``references=True``, which is
        the default for tables and frames. A run of an earlier version has none.
        """
        return dict(self.summary.get("verdict", {}))

    @property
    def history(self) -> list[dict[str, Any]]:
        """Return the records of all rounds, as in ``rounds.jsonl``."""
        return self.results.history

    @property
    def state(self) -> State:
        """Return the models and labels after the last round."""
        return self.results.state

    @property
    def data(self) -> Federated:
        """Return the clients' data."""
        return self.results.data

    @property
    def model(self) -> Model:
        """Return the network that was trained."""
        return self.results.model

    @property
    def settings(self) -> Settings:
        """Return the settings that make the run again."""
        return self.results.settings

    @property
    def algorithm(self) -> Algorithm:
        """Return the algorithm that was run."""
        return self.results.trained.algorithm

    @property
    def labels(self) -> Array:
        """Return the cluster of every client."""
        return self.state.labels

    @property
    def memberships(self) -> Array | None:
        """Return how much of each cluster's model every client has, ``(clients, K)``, where clusters are soft."""
        return self.state.memberships

    def clusters(self) -> dict[str, int]:
        """Return the cluster of every client by name."""
        return dict(zip(self.data.names, self.labels.tolist(), strict=True))

    @checked
    def model_for(self, client: int | str) -> nn.Module:
        """Return the network with which a client, given by position or name, was last tested, in evaluation mode.

        Steps before a test, such as choosing again or fine-tuning, are repeated. A client that was absent in the last
        round gets the network that would have served it.
        """
        return self.served.network(self._position(client))

    def mean_model(self) -> nn.Module:
        """Return the network of a client without a cluster, the mean of the cluster models by their shares."""
        return mean_network(self.model, self.state, self.results.mix)

    @checked
    def predict(self, x: Any, client: int | str, proba: bool = False) -> Array:
        """Return what the model of a client predicts for examples ``x``, an array or a data frame like the run's.

        Classes are given by their names where they have some, otherwise by number; real targets in their own units;
        several labels as 0 and 1. With ``proba`` the probability of each class, or label, in the order of
        ``data.class_names``.
        """
        outputs = self._outputs(self._examples(x), self.model_for(client))
        if self.model.classes is None:
            if proba:
                raise UsageError("proba is True, but the run predicts a number; leave it out")
            found: Array = outputs.numpy() if self.model.columns else outputs[:, 0].numpy()
            return found if self.data.schema is None else self.data.schema.in_units(found)
        labels = self.model.target.is_labels
        if proba:
            chances: Array = (torch.sigmoid(outputs) if labels else torch.softmax(outputs, 1)).numpy()
            return chances
        if labels:
            return (outputs > 0).long().numpy()
        classes: Array = outputs.argmax(1).numpy()
        return np.array(self.data.class_names)[classes] if self.data.class_names else classes

    @checked
    def export(
        self,
        path: str | Path,
        client: int | str | None = None,
        *,
        cluster: int | None = None,
        every: bool = False,
        format: str = "onnx",
    ) -> Path:
        """Write the model of a client, of a cluster, or every model, as a new folder for use elsewhere.

        ``format`` is onnx, torch or safetensors. The folder holds the model, the schema of the tables, metrics, a model
        card and a script that predicts. What is exported is what ``model_for`` returns.
        """
        name = None if client is None else self.data.names[self._position(client)]
        return export_run(self.served, Path(path), client=name, cluster=cluster, every=every, kind=format)

    @cached_property
    def served(self) -> ServedRun:
        """The run as something to predict with and to export."""
        return ServedRun(
            trained=self.results.trained,
            settings=self.settings,
            summary=self.summary,
            schema=self.data.schema,
            class_names=self.data.class_names,
            find_data=self._find_data,
        )

    @checked
    def client_models(self, round: int | None = None) -> dict[str, nn.Module]:
        """Return the models that clients sent in a round (0 is the first; None: the last), by client name.

        A run keeps only its last models, so the rounds before are trained again, with the same numbers.
        """
        settings, last = self.settings, self.state.round - 1
        wanted = last if round is None else round
        if not 0 <= wanted <= last:
            raise UsageError(f"round is {round}; the run has rounds 0 to {last}")
        who, simulator = building.build_attendance(settings, self.data.names), self._simulator()
        federation = simulator if who is None else Attended(simulator, who)
        conditions = building.build_conditions(settings)
        for step in rounds(self.algorithm, federation, settings.seed, conditions=conditions):
            if step.state.round > wanted:
                break
        names = (self.data.names[client] for client in step.replies.clients)
        rows = zip(*step.replies.models(), strict=True)
        return {name: self.model.with_row(*row) for name, row in zip(names, rows, strict=True)}

    def assign(self, x: Array, y: Array | None = None, attributes: Mapping[str, str] | None = None) -> Placement:
        """Place a client that took no part in the run, with these examples; see ``Trained.assign``."""
        return self.results.trained.assign(x, y, attributes)

    def apart(self) -> Apart | None:
        """Return the columns or classes in which each cluster's clients differ from the others; None without clusters.

        ``coterie show RUN`` shows it as a table; ``experiments.apart.Difference`` says what the numbers are.
        """
        return find_apart(self._simulator(), self.state, facts_of(self.data), self.results.present)

    @property
    def plot(self) -> RunPlots:
        """The figures of the run: ``run.plot.flow()``, ``.map()``, ``.sizes()``, ...; each may be saved at a ``path``.

        ``run.plot()`` draws scores and cluster sizes by round.
        """
        return RunPlots(
            title=f"{self.summary['algorithm']} on {self.summary['data']}",
            history=self.history,
            names=self.data.names,
            labels=self.results.course.labels,
            sketches=self.results.course.sketches,
            groups=self.data.groups,
            score=score_of(self.summary),
        )

    @checked
    def report(self, path: str | Path) -> Path:
        """Write the report of the run, one HTML page; the run must have been kept in a folder (``out=``)."""
        if self.folder is None:
            raise UsageError("the run has no folder, and a report is made from one; run it with out=")
        return write_report(self.folder, Path(path))

    def _repr_html_(self) -> str:
        """Show the summary and the curves in a notebook."""
        names = (
            *("algorithm", "data", "partition", "clients", "rounds", "clusters_found", "accuracy", "macro_f1"),
            *("metric_name", "metric", "worst_client", "rmse", "r2", "ari", "seconds"),
        )
        found = [(name.replace("_", " "), self.summary[name]) for name in names if self.summary.get(name) is not None]
        shown = ((name, f"{value:.3f}" if isinstance(value, float) else value) for name, value in found)
        return html_pairs(repr(self), shown) + svg(self.plot())

    def _find_data(self) -> Federated:
        return self.data

    def _position(self, client: int | str) -> int:
        if client not in (self.data.names if isinstance(client, str) else range(len(self.data))):
            raise UnknownName("client", str(client), self.data.names)
        return self.data.names.index(client) if isinstance(client, str) else client

    def _examples(self, x: Any) -> torch.Tensor:
        """Return examples as the network takes them; rows of a table are turned into numbers by the run's schema."""
        if isinstance(x, str | Path):
            read = "read it, pandas.read_csv(...), or predict it on the command line: coterie predict RUN --data FILE"
            raise DataError(f"x is {str(x)!r}; give an array of examples or a data frame. If it is a file, {read}")
        if not isinstance(x, np.ndarray | torch.Tensor | Sequence):
            x = given_data(x, self.data.schema)
        vocabulary = self.data.vocabulary
        found = as_numbers(x, "x", "encode it as the run's examples are, or give a data frame like the run's")
        array = found.astype(np.float32 if vocabulary is None else np.int64, copy=False)
        if tuple(array.shape[1:]) != self.data.shape:
            raise DataError(f"x has shape {array.shape}; the run's examples are of shape (n, {self.data.shape})")
        if vocabulary is not None and array.size and not (array.min() >= 0 and array.max() < vocabulary):
            raise DataError(f"x has tokens from {array.min()} to {array.max()}; the run's are 0..{vocabulary - 1}")
        return torch.from_numpy(array)

    @torch.no_grad()
    def _outputs(self, x: torch.Tensor, model: nn.Module) -> torch.Tensor:
        return torch.cat([model(part) for part in torch.split(x, BATCH)]) if len(x) else model(x)

    def _simulator(self) -> Simulator:
        settings = self.settings
        return Simulator(self.data, self.model, settings.threads, plan=settings.plan, device=settings.device)


@checked
def run(
    algorithm: Algorithm | str,
    clients: Federated,
    model: Given = None,
    rounds: int | None = None,
    seed: int = 1,
    progress: Progress | bool | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    **options: Any,
) -> Run:
    """Train an algorithm on the data of clients; with ``resume`` continue the run in ``out``.

    ``algorithm`` is a value, ``ct.wecfl(clusters=4) + ct.cks(strength=0.1)``, or the same as text,
    ``"wecfl(clusters=4)+cks(strength=0.1)"``. ``model``: a text (``"mlp(64)"``), a ``torch.nn.Module``, a function that
    makes one, or None for a default. ``rounds``: 20 if not given. On tables an algorithm without a ``fit`` of its own
    is trained with the defaults that ``coterie run`` has for tables. ``progress``: True shows a bar; a function is
    called with the record of every round. ``track``, of ``options``, names trackers of experiments: ``"tensorboard"``,
    ``"mlflow"``, ``"wandb"``, or several in a list. ``options`` are those of the command line, with
    underscores: participation, join, leave, eval_every, robust, threads, ...; for an algorithm that is a text also
    clusters, choose, and local training (steps, epochs, batch, lr, momentum, optimizer, ...), which a value has in its
    ``fit``: ``ct.wecfl(clusters=4, fit=ct.Fit(steps=20, lr=0.05))``.
    """
    built, network, settings = python_settings(algorithm, clients, model, {"rounds": rounds, "seed": seed, **options})
    if resume and out is None:
        raise UsageError("resume is True, but no folder is named; give that of the run as out=")
    folder = None if out is None else Path(out)
    with shown_with_references(settings, progress) as (report, show):
        return Run(simulate(built, clients, network, settings, folder, resume, report, show, track=track), folder)


def shown_with_references(
    settings: Settings, progress: Progress | bool | None
) -> AbstractContextManager[tuple[Progress | None, ShowRun]]:
    """Give what shows the rounds of a run, a bar, the user's function or nothing, and those of its references."""
    if progress is True:
        return watch_with_references(settings)
    return nullcontext((progress if callable(progress) else None, unseen))


@checked
def load_run(path: str | Path, clients: Federated | None = None, model: Given = None) -> Run:
    """Load a finished run from its folder, of Python or of the command line.

    Data and network are made again from ``config.toml``. ``clients`` and ``model`` are needed where Python made them
    and no text names them.
    """
    folder = Path(path)
    trained = load_trained(folder, model)
    settings, summary = load_settings(folder / CONFIG, {}), load_summary(folder)
    if summary is None:
        raise no_finished_run(folder)
    if clients is None:
        if not in_words(folder / CONFIG):
            raise RunFolderError(f"{folder} was run on data that Python made; give them as clients=")
        clients = building.build_data(settings)
    check_examples(folder, facts_of(clients))
    who = building.build_attendance(settings, clients.names)
    found = Results(
        summary=summary,
        history=load_rounds(folder),
        state=trained.state,
        model=trained.model,
        data=clients,
        trained=trained,
        settings=settings,
        present=np.arange(len(clients)) if who is None else who.present(trained.state.round - 1),
        mix=trained.algorithm.serve.mix if trained.algorithm.members else None,
        course=Course(list(load_labels(folder)), load_sketches(folder)),
    )
    return Run(found, folder)
