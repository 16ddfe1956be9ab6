"""The parts that methods are made of, in one place, for those who write their own.

The types are explained in ``coterie.server.contract``, what clients can be asked in ``coterie.protocol.task`` and
``coterie.protocol.report``; the page "your own method in one file" puts them together.
"""

from coterie.algorithms.method import add_on, always, finds_number, method
from coterie.errors import FederationError, UsageError
from coterie.protocol.client_function import ClientData, client_function
from coterie.protocol.federation import Federation
from coterie.protocol.replies import Replies
from coterie.protocol.report import Describe, Report
from coterie.protocol.stack import UNPLACED, Stack
from coterie.protocol.task import (
    Agreement,
    BatchLoss,
    Contrast,
    Fit,
    Loss,
    Near,
    Others,
    Proximal,
    Race,
    Task,
)
from coterie.seeding import Key
from coterie.server.aggregate import server_optimiser, uniform
from coterie.server.assign import as_trained, cluster_by_part, join_nearest, nearest_centre, until
from coterie.server.clustering.clusterers import Clusterer, agglomerative, clusterers, dbscan, hdbscan, kmedoids
from coterie.server.clustering.weighted_kmeans import WeightedKMeans
from coterie.server.contract import (
    Algorithm,
    Ask,
    Assign,
    Assignment,
    Moments,
    Place,
    Prepare,
    Scores,
    Serving,
    Start,
    State,
    Update,
    Weigh,
    by_examples,
    least_loss,
    mean_model,
    memory_type,
    previous_models,
    replace_models,
)
from coterie.server.one_shot import after, cluster_once, once, temperature_rises
from coterie.server.placement import join, nearest_update
from coterie.server.start import farthest_first, first_state, model_per_client, one_model, one_model_for, random_models

__all__ = [
    "UNPLACED",
    "Agreement",
    "Algorithm",
    "Ask",
    "Assign",
    "Assignment",
    "BatchLoss",
    "ClientData",
    "Clusterer",
    "Contrast",
    "Describe",
    "Federation",
    "FederationError",
    "Fit",
    "Key",
    "Loss",
    "Moments",
    "Near",
    "Others",
    "Place",
    "Prepare",
    "Proximal",
    "Race",
    "Replies",
    "Report",
    "Scores",
    "Serving",
    "Stack",
    "Start",
    "State",
    "Task",
    "Update",
    "UsageError",
    "Weigh",
    "WeightedKMeans",
    "add_on",
    "after",
    "agglomerative",
    "always",
    "as_trained",
    "by_examples",
    "client_function",
    "cluster_by_part",
    "cluster_once",
    "clusterers",
    "dbscan",
    "farthest_first",
    "finds_number",
    "first_state",
    "hdbscan",
    "join",
    "join_nearest",
    "kmedoids",
    "least_loss",
    "mean_model",
    "memory_type",
    "method",
    "model_per_client",
    "nearest_centre",
    "nearest_update",
    "once",
    "one_model",
    "one_model_for",
    "previous_models",
    "random_models",
    "replace_models",
    "server_optimiser",
    "temperature_rises",
    "uniform",
    "until",
]
