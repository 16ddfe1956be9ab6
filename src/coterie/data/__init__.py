"""Data: published sets, partitions and users' own files become clients that hold examples."""

from coterie.data.dataset import Dataset
from coterie.data.federated import Federated, Split
from coterie.data.own.load import SUFFIXES, check_own, load_client, load_folder, load_own, load_pooled
from coterie.data.own.reading import Reading
from coterie.data.own.schema import Schema
from coterie.data.partitioning.catalogue import add_ons, parse_partition, partitions
from coterie.data.published.catalogue import fetch, load, naturally_federated, sources

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
