"""Weights & Biases: a run of the project ``coterie``, offline where nobody is logged in."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from coterie.tracking.story import Beginning, Ending, Telling

PROJECT = "coterie"
"""The project, unless WANDB_PROJECT names another."""

PATIENCE = 30.0
"""Seconds that a server may take to answer when a run begins."""


def begin(run: Beginning) -> Telling:
    """Begin a run, or go on with the one of this id; files are in the run's folder, if it has one."""
    import wandb

    mode = _mode()
    going: Any = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=run.name,
        group=run.group,
        config=dict(run.settings),
        dir=None if run.folder is None else str(run.folder.resolve()),
        id=run.known_as,
        resume="allow" if mode == "online" else None,
        mode=mode,
        reinit="create_new",
        settings=wandb.Settings(init_timeout=PATIENCE, silent=True, console="off", x_disable_stats=True),
    )

    def finish(ending: Ending) -> None:
        going.summary.update(dict(ending.numbers) | dict(ending.texts))
        going.log({name: _image(picture) for name, picture in ending.pictures.items()})
        if ending.files:
            going.log_artifact(_artifact(going.id, ending.files))

    return Telling(
        id=str(going.id),
        told=int(going.starting_step),
        round=lambda number, numbers: going.log(dict(numbers), step=number),
        finished=finish,
        close=lambda finished: going.finish(0 if finished else 1),
    )


def _mode() -> Any:
    """Return the mode that the environment asks for; without one online if somebody is logged in, otherwise offline."""
    import wandb

    return os.environ.get("WANDB_MODE") or ("online" if wandb.api.api_key else "offline")


def _image(picture: bytes) -> Any:
    import wandb
    from PIL import Image

    return wandb.Image(Image.open(io.BytesIO(picture)))


def _artifact(known_as: str, files: tuple[Path, ...]) -> Any:
    import wandb

    artifact = wandb.Artifact(f"run-{known_as}", "model")
    for path in files:
        artifact.add_file(str(path))
    return artifact
