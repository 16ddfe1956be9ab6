"""``.npz`` files of arrays: read without pickle and with checks, written whole or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.tables.problems import BadFile
from coterie.files import write_atomically
from coterie.limits import inflated
from coterie.typing import Array

SAVE_PLAIN = "if that is intended, save it with numpy.savez, which does not compress"


def load_npz(path: Path, names: Collection[str], remedy: str) -> dict[str, Array]:
    """Return the named arrays that the file has; a damaged file is an error that ends with ``remedy``."""
    try:
        # Opened here, because numpy would leave a file open that turns out to be damaged.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            announced = {each.filename.removesuffix(".npy"): each.file_size for each in file.zip.infolist()}
            wanted = [name for name in names if name in file]
            too_much = inflated(path.stat().st_size, sum(announced[name] for name in wanted))
            if too_much:
                raise BadFile(path, None, too_much, SAVE_PLAIN)
            return {name: file[name] for name in wanted}
    except BadFile:
        raise
    except Exception as error:  # a damaged file can fail anywhere inside numpy, zipfile or zlib
        objects = "Object arrays" in str(error)
        reason = "holds Python objects, not plain arrays" if objects else f"is damaged or no .npz file ({error})"
        raise BadFile(path, None, reason, remedy) from error


def save_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a ``.npz`` file, whole or not at all; the caller ensures that only one process does so."""
    parts = dict[str, Any](arrays)
    write_atomically(path, lambda file: np.savez(file, **parts))
