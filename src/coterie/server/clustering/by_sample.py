"""Clusterers of more clients than can be compared pair by pair: a sample is clustered, the others join its clusters."""

from __future__ import annotations

from dataclasses import replace

from coterie.errors import UsageError
from coterie.seeding import Key
from coterie.server.clustering.clusterers import Clusterer, renumbered
from coterie.server.distances.many_clients import Distances, Sampled
from coterie.typing import Array

FEWEST = 2
"""The least number of sampled clients that may be asked of a cluster."""


def find_clusters(clusterer: Clusterer, distances: Distances, key: Key) -> Array:
    """Return the cluster of every client, numbered from 0 in the order of their first clients.

    Clients outside the sample join the cluster of least mean distance to its sampled clients, as noise does.
    """
    if not isinstance(distances, Sampled):
        return clusterer(distances, key)
    found = for_sample(clusterer, distances)(distances.among, key)
    labels = distances.to_clusters(found).argmin(axis=1)
    labels[distances.sample] = found
    return renumbered(labels)


def for_sample(clusterer: Clusterer, distances: Sampled) -> Clusterer:
    """Return the clusterer for the sample: its least numbers of clients are of all, and shrink with the sample."""
    size, count = len(distances.sample), distances.count
    if clusterer.least_points > size:
        raise UsageError(
            f"clusters is {clusterer.clusters}, and of {count:,} clients a sample of {size:,} is clustered: "
            f"raise sketch-sample (at most exact-clients, {distances.limit:,})"
        )
    if clusterer.apart:
        raise UsageError(
            f"apart is set for {count:,} clients, of which a sample of {size:,} is clustered, so only its noise "
            f"is known: leave it out, or raise exact-clients ({distances.limit:,})"
        )
    members = clusterer.options.get("members")
    if members is None:
        return clusterer
    fewer = max(FEWEST, round(members * size / count))
    return replace(clusterer, options={**clusterer.options, "members": min(members, fewer)})
