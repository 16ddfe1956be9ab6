"""MLflow: a run of the experiment ``coterie`` on the server, in the database or in the folder that MLflow is set to."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.tracking.story import Beginning, Ending, Telling

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "coterie"
"""The experiment, unless MLFLOW_EXPERIMENT_NAME names another."""

PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""How often and how long a silent server is asked, unless the environment says otherwise: a run does not wait."""

LONGEST = 6000
"""Letters of a setting that MLflow takes."""

COUNTED = "asked"
"""A number that every round has, by which the rounds that MLflow knows are counted."""


def begin(run: Beginning) -> Telling:
    """Begin a run, or go on with the one of this id."""
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient()
    known_as = _resumed(client, run.known_as) or _created(client, run)
    history = client.get_metric_history(known_as, COUNTED)

    def tell_round(number: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        client.log_batch(known_as, metrics=[Metric(name, value, now, number) for name, value in numbers.items()])

    def finish(ending: Ending) -> None:
        now = int(time.time() * 1000)
        client.log_batch(known_as, [Metric(f"last/{name}", value, now, 0) for name, value in ending.numbers.items()])
        for name, text in ending.texts.items():
            client.log_text(known_as, text, f"{name}.txt")
        for name, picture in ending.pictures.items():
            _log_picture(client, known_as, name, picture)
        for path in ending.files:
            client.log_artifact(known_as, str(path), "run")

    if run.known_as != known_as:
        settings = [Param(name, str(value)[:LONGEST]) for name, value in run.settings.items()]
        client.log_batch(known_as, params=settings)
    return Telling(
        id=known_as,
        told=max((each.step for each in history), default=0),
        round=tell_round,
        finished=finish,
        close=lambda finished: client.set_terminated(known_as, "FINISHED" if finished else "KILLED"),
    )


def _resumed(client: MlflowClient, known_as: str | None) -> str | None:
    """Return the id of a run that goes on; None if there is none, or MLflow no longer has it."""
    from mlflow.exceptions import MlflowException

    if known_as is None:
        return None
    try:
        client.update_run(known_as, status="RUNNING")
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return known_as


def _created(client: MlflowClient, run: Beginning) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    experiment = client.get_experiment_by_name(name)
    number = client.create_experiment(name) if experiment is None else experiment.experiment_id
    made = client.create_run(number, run_name=run.name, tags={"algorithm": run.group})
    return str(made.info.run_id)


def _log_picture(client: MlflowClient, known_as: str, name: str, picture: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.png"
        path.write_bytes(picture)
        client.log_artifact(known_as, str(path), "figures")
