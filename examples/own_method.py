"""A method of your own in one file: cluster clients by how often they have each label, then run FedAvg in each cluster.

From the folder of this file the command line runs it like any other method::

    coterie run 'own_method:by_labels(clusters=2)' --partition blocks --clients 20 --rounds 5

It asks clients for one array that coterie does not know, the shares of their labels, so it brings a client function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

import coterie as ct
from coterie.parts import (
    UNPLACED,
    Ask,
    Assign,
    Assignment,
    Key,
    Replies,
    Scores,
    State,
    always,
    clusterers,
    join,
    memory_type,
    method,
    one_model_for,
)

Array = np.ndarray[Any, Any]


@ct.client_function("classes")
def label_shares(client: ct.ClientData) -> Array:
    """Return the share of each class among a client's train examples: runs at the client, and alone leaves it."""
    counts = np.bincount(client.y, minlength=client.classes or 0)
    return counts / counts.sum()


@memory_type
@dataclass(frozen=True)
class Centres:
    """What the rule remembers between rounds, saved with every checkpoint: the mean shares of each cluster."""

    shares: Array


@method  # names it by its call in tables and run folders: own_method:by_labels(clusters=4)
def by_labels(clusters: int = 2, fit: ct.Fit = ct.Fit()) -> ct.Algorithm:
    """Cluster clients by their label shares before round 0, then run FedAvg in each cluster."""
    return ct.Algorithm(
        start=one_model_for(clusters),
        task=always(ct.Task(fit=(fit,))),
        assign=cluster_by_shares(clusters),
        place=nearest_shares,
    )


def cluster_by_shares(clusters: int) -> Assign:
    """Cluster all clients in the first round; afterwards keep them, and place those that come later."""
    join_later, by_distance = join(nearest_shares), clusterers.build("agglomerative(linkage=ward)", clusters=clusters)

    def assign(state: State, replies: Replies, key: Key, ask: Ask) -> Assignment:
        if state.formed:
            return join_later(state, replies, key, ask)
        everyone = np.arange(len(state.labels))
        heard = ask(ct.Task(report=label_shares.report()), state.stack, np.zeros_like(everyone), everyone)
        if (
            len(heard) < clusters
        ):  # too few have answered: everyone stays on the first model, and the next round asks again
            return Assignment(state.labels, state.memory)
        shares = heard.description
        found = by_distance(cdist(shares, shares), key)
        labels = np.full(len(everyone), UNPLACED)  # whoever did not answer is placed when it does
        labels[heard.clients] = found
        centres = np.stack([shares[found == k].mean(axis=0) for k in range(clusters)])
        return Assignment(labels, Centres(centres), parents=(0,) * clusters, formed=True)

    return assign


def nearest_shares(state: State, ask: Ask, clients: Array) -> Scores:
    """Score clusters for clients that have none by minus the distance of their label shares to the cluster's."""
    heard = ask(ct.Task(report=label_shares.report()), state.stack, np.zeros_like(clients), clients)
    return Scores(heard.clients, -cdist(heard.description, state.memory.shares))


def main() -> None:
    """Run it beside FedAvg on digits, of which groups of clients have different ones."""
    clients = ct.load("digits").partition("blocks", clients=20, seed=1)
    for algorithm in (ct.fedavg(), by_labels(clusters=4)):
        print(ct.run(algorithm, clients, model="mlp(32)", rounds=5))


if __name__ == "__main__":
    main()
