"""The data of one site: its own file, as the one client of the site's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.data import Federated, Schema, load_client

SCHEMA = "schema.json"
"""How tables become arrays, agreed by all sites; a run on tables writes one."""


def load_data(file: str | Path, name: str, folder: str | Path, **options: Any) -> Federated:
    """A site's ``.npz``, ``.csv`` or ``.parquet`` file, read as a simulation reads a folder that holds ``NAME``'s file.

    ``options`` are those of ``load_own`` (label, ignore, missing, task, test, validation, seed). Tables need the
    ``schema.json`` in ``folder``, where the site's configuration is.
    """
    schema = Path(folder) / SCHEMA
    return load_client(file, name, schema=Schema.load(schema) if schema.is_file() else None, **options)
