"""Data: published sets, partitions and users' own files become clients that hold examples."""

from coterie.data.dataset import Dataset
from coterie.data.federated import Federated, Split
from coterie.data.partition import add_ons, parse_partition, partitions
from coterie.data.schema import Schema
from coterie.data.sources import fetch, load, naturally_federated, sources
from coterie.data.userdata import SUFFIXES, check_own, load_folder, load_own, load_pooled

__all__ = [
    "SUFFIXES",
    "Dataset",
    "Federated",
    "Schema",
    "Split",
    "add_ons",
    "check_own",
    "fetch",
    "load",
    "load_folder",
    "load_own",
    "load_pooled",
    "naturally_federated",
    "parse_partition",
    "partitions",
    "sources",
]
