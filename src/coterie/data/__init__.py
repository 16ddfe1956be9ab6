"""Data: published sets, partitions and users' own files become clients that hold examples."""

from coterie.data.dataset import Dataset
from coterie.data.federated import Federated, Split
from coterie.data.partitions.registry import add_ons, parse_partition, partitions
from coterie.data.sources.registry import fetch, load, naturally_federated, sources
from coterie.data.tables.api import check_own, load_client, load_folder, load_own, load_pooled
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
    "check_own",
    "fetch",
    "load",
    "load_client",
    "load_folder",
    "load_own",
    "load_pooled",
    "naturally_federated",
    "parse_partition",
    "partitions",
    "sources",
]
