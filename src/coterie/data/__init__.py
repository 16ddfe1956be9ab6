"""Data: published sets, partitions and users' own files become clients that hold examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.lazy import importer

if TYPE_CHECKING:
    from coterie.data.dataset import Dataset
    from coterie.data.federated import Federated, Split
    from coterie.data.given.arrays import from_arrays
    from coterie.data.given.datasets import from_datasets
    from coterie.data.partitions.registry import add_ons, parse_partition
    from coterie.data.sources.registry import fetch, load, naturally_federated
    from coterie.data.tables.api import (
        check_files,
        check_own,
        from_frame,
        load_client,
        load_folder,
        load_own,
        load_pooled,
        read_own,
        read_pooled,
    )
    from coterie.data.tables.files import SUFFIXES
    from coterie.data.tables.reading import Reading
    from coterie.data.tables.schema import Schema

__all__ = [
    "SUFFIXES",
    "Dataset",
    "Federated",
    "Reading",
    "Schema",
    "Split",
    "add_ons",
    "check_files",
    "check_own",
    "fetch",
    "from_arrays",
    "from_datasets",
    "from_frame",
    "load",
    "load_client",
    "load_folder",
    "load_own",
    "load_pooled",
    "naturally_federated",
    "parse_partition",
    "read_own",
    "read_pooled",
]

if not TYPE_CHECKING:  # a type checker reads the imports above, and so knows which names there are
    __getattr__ = importer(
        __name__,
        {
            "coterie.data.dataset": ("Dataset",),
            "coterie.data.federated": ("Federated", "Split"),
            "coterie.data.given.arrays": ("from_arrays",),
            "coterie.data.given.datasets": ("from_datasets",),
            "coterie.data.partitions.registry": ("add_ons", "parse_partition"),
            "coterie.data.sources.registry": ("fetch", "load", "naturally_federated"),
            "coterie.data.tables.api": (
                *(
                    "check_files",
                    "check_own",
                    "from_frame",
                    "load_client",
                    "load_folder",
                    "load_own",
                    "load_pooled",
                    "read_own",
                    "read_pooled",
                ),
            ),
            "coterie.data.tables.files": ("SUFFIXES",),
            "coterie.data.tables.reading": ("Reading",),
            "coterie.data.tables.schema": ("Schema",),
        },
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
