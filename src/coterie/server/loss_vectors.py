"""Clusters of loss vectors: the losses of a client under all cluster models, found before clients train."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy

from coterie.seeding import Key
from coterie.server.clustering.weighted_kmeans import WeightedKMeans
from coterie.server.contract import Ask, Prepare, State, least_loss
from coterie.typing import Array


def cluster_losses(clusterer: WeightedKMeans) -> Prepare:
    """Cluster the loss vectors of the round's clients, and give each cluster the model that matches it.

    Clients that do not answer, or have losses that are not finite, stay where they are; with fewer answers than
    clusters all do.
    """

    def prepare(state: State, clients: Array, key: Key, ask: Ask) -> State:
        found = least_loss(state, ask, clients)
        heard = np.isfinite(found.values).all(axis=1)
        if heard.sum() < clusterer.clusters:
            return state
        losses = -found.values[heard]
        groups, _ = clusterer(losses, np.ones(len(losses)), key, None)
        labels = state.labels.copy()
        labels[found.clients[heard]] = cheapest_models(losses, groups)[groups]
        return replace(state, labels=labels)

    return prepare


def cheapest_models(losses: Array, groups: Array) -> Array:
    """Return a different model for each group, such that the sum of all clients' losses is the least possible.

    Both groups have less loss under model 0, but the second loses less by taking the other.

    >>> cheapest_models(np.array([[1.0, 5.0], [2.0, 3.5]]), np.array([0, 1])).tolist()
    [0, 1]
    """
    costs = np.zeros((losses.shape[1], losses.shape[1]))
    np.add.at(costs, groups, losses)
    models: Array = scipy.optimize.linear_sum_assignment(costs)[1]
    return models
