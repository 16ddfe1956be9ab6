"""Data: published sets, partitions and users' own folders become clients that hold examples."""

from coterie.data.dataset import Dataset
from coterie.data.federated import Federated, Split
from coterie.data.partition import parse_partition, partitions
from coterie.data.sources import fetch, load, sources
from coterie.data.userdata import load_folder

__all__ = ["Dataset", "Federated", "Split", "fetch", "load", "load_folder", "parse_partition", "partitions", "sources"]
