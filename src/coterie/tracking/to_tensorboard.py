"""TensorBoard: event files in the run's folder. ``tensorboard --logdir runs`` shows all runs under it."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.experiments.sweep import slug
from coterie.tracking.story import Beginning, Ending, Telling

FOLDER = "tensorboard"
"""The folder of the event files, in the run's folder or, for a run without one, under ``runs``."""


def begin(run: Beginning) -> Telling:
    """Write events into the run's folder; of a run that is resumed all events are written again."""
    from torch.utils.tensorboard import SummaryWriter

    folder = _folder(run)
    writer: Any = SummaryWriter(str(folder), purge_step=0)
    writer.add_text("settings", _as_table(run.settings))

    def tell_round(number: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, number)
        writer.flush()

    def finish(ending: Ending) -> None:
        for name, text in ending.texts.items():
            writer.add_text(name, text.replace("\n", "  \n"))
        for name, picture in ending.pictures.items():
            writer.add_image(name, _pixels(picture), dataformats="HWC")
        _add_hparams(writer, run.settings, ending.numbers)
        if run.folder is not None:
            writer.add_text("models", f"The final models are in `{run.folder}`; Python loads them by `ct.load_run`.")
        writer.flush()

    return Telling(FOLDER, 0, tell_round, finish, lambda finished: writer.close())


def _folder(run: Beginning) -> Path:
    if run.folder is not None:
        return run.folder / FOLDER
    return Path("runs") / FOLDER / f"{slug(run.name)}-{time.strftime('%Y%m%d-%H%M%S')}"


def _as_table(settings: Mapping[str, Any]) -> str:
    rows = (f"| {name} | {value} |" for name, value in settings.items())
    return "\n".join(("| setting | value |", "|---|---|", *rows))


def _add_hparams(writer: Any, settings: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
    """Write settings and last numbers for the table of runs, into the same file, so that a run stays one run."""
    from torch.utils.tensorboard.summary import hparams

    plain = {name: value if isinstance(value, bool | int | float) else str(value) for name, value in settings.items()}
    last = {f"last/{name}": value for name, value in numbers.items()}
    for each in hparams(plain, last):  # type: ignore[no-untyped-call]
        writer.file_writer.add_summary(each)
    for name, value in last.items():
        writer.add_scalar(name, value)


def _pixels(picture: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
