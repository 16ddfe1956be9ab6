"""Maps of clients and their similarities, from sketches of their models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coterie.experiments.client_sketches import ClientSketches, shown_rounds
from coterie.reporting.figures.marks import Figure, Heatmap, Panel, Scatter
from coterie.seeding import generator
from coterie.server.clustering.threads import one_thread
from coterie.server.distances.sketches import directions
from coterie.typing import Array

MOST_POINTS = 400
"""Clients of a map; of more an even sample is shown."""

MOST_CELLS = 240
"""Clients of a heatmap, likewise."""

PANELS = 4
"""Rounds of a map."""


def maps(
    sketches: ClientSketches,
    labels: Sequence[Array],
    names: Sequence[str],
    rounds: Sequence[int],
    most: int = MOST_POINTS,
    neighbours: bool = True,
) -> list[Figure]:
    """Return maps of clients by principal components and by t-SNE, over rounds (thesis figures 3.5 and 3.6).

    ``labels`` are those after each of ``rounds`` (0 is the first), ``most`` the clients that are shown. Without
    ``neighbours`` there is no t-SNE, which takes longer, and places clients anew with every round that is added.
    """
    clouds = _clouds(sketches, dict(zip(rounds, labels, strict=True)), most)
    if not clouds:
        return []
    said = "Every client is a point; clients are near each other whose models are alike; colour and shape are clusters."
    kinds = {"pca": ("principal components", by_components), "tsne": ("t-SNE", by_neighbours)}
    found = []
    for kind, (words, place) in list(kinds.items())[: 1 + neighbours]:
        placed = place([cloud.points for cloud in clouds])
        if placed is not None:
            panels = tuple(cloud.panel(spots, names) for cloud, spots in zip(clouds, placed, strict=True))
            marks = Scatter(panels, common=kind == "pca")
            found.append(Figure(f"map-{kind}", f"Map of clients, {words}", said, marks))
    return found


class _Cloud(NamedTuple):
    """The sketches of some clients in a round, and their clusters."""

    round: int
    clients: Array
    points: Array
    groups: Array

    def panel(self, spots: Array, names: Sequence[str]) -> Panel:
        who = tuple(names[int(i)] for i in self.clients)
        return Panel(f"round {self.round + 1}", spots, tuple(self.groups.tolist()), who)


def _clouds(sketches: ClientSketches, after: Mapping[int, Array], most: int) -> list[_Cloud]:
    """Return the sketches of a few rounds, of clients that have some there."""
    few, found = _thinned(len(sketches.clients), most), []
    for place in shown_rounds(sketches, PANELS):
        number, points = int(sketches.rounds[place]), sketches.points[place][few].astype(np.float64)
        known = np.isfinite(points).all(axis=1)
        if number in after and known.any():
            clients = sketches.clients[few][known]
            found.append(_Cloud(number, clients, points[known], after[number][clients]))
    return found


def by_components(clouds: Sequence[Array]) -> list[Array] | None:
    """Return the first two principal components of all clouds together, so that clients can be followed."""
    everything = np.concatenate(clouds)
    if len(everything) < 2:
        return None
    middle = everything.mean(axis=0)
    with one_thread():
        _, _, axes = np.linalg.svd(everything - middle, full_matrices=False)
    axes = axes[:2] * np.sign(axes[:2, np.abs(axes[:2]).argmax(axis=1)].diagonal())[:, None]
    return [(cloud - middle) @ axes.T for cloud in clouds]


def by_neighbours(clouds: Sequence[Array]) -> list[Array] | None:
    """Return each cloud by t-SNE, which keeps neighbours together; None with fewer than five clients."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if min(map(len, clouds)) < 5:
        return None
    found = []
    with threadpool_limits(1):  # so few points are slower on several threads, and on a busy machine very much so
        for cloud in clouds:
            unit = cloud / max(float(cloud.std()), 1e-12)
            jitter = generator(0, "t-sne").normal(scale=1e-6, size=unit.shape)  # equal clients have no neighbours
            some = TSNE(perplexity=min(30.0, (len(cloud) - 1) / 3), init="pca", random_state=0, max_iter=500)
            found.append(some.fit_transform(unit + jitter).astype(np.float64))
    return found


def similarities(sketches: ClientSketches, labels: Array, names: Sequence[str]) -> Figure | None:
    """Return the cosines between the clients' last sketches, sorted by cluster (thesis figure 3.4)."""
    if not len(sketches.rounds):
        return None
    points = sketches.points[-1].astype(np.float64)
    known = np.isfinite(points).all(axis=1)
    clients, unit = sketches.clients[known], directions(points[known])
    number = int(sketches.rounds[-1]) + 1
    about = f"Cosine of every two clients' models in round {number}, sorted by cluster; 1 is the same direction."
    return _heatmap(
        np.clip(unit @ unit.T, -1, 1), labels[clients], [names[int(i)] for i in clients], ("cosine", -1, 1), about
    )


def distances(values: Array, labels: Array, names: Sequence[str]) -> Figure | None:
    """Return the distances by which a method clustered its clients, sorted by cluster."""
    known = np.flatnonzero(np.isfinite(values).sum(axis=1) > 1)
    square = values[np.ix_(known, known)]
    if len(known) < 2 or not np.isfinite(square).all():
        return None
    words = ("distance", 0.0, float(square.max()) or 1.0)
    about = "Distance of every two clients when clusters formed, sorted by cluster; 0 is alike."
    return _heatmap(square, labels[known], [names[int(i)] for i in known], words, about)


def _heatmap(
    square: Array, labels: Array, names: Sequence[str], words: tuple[str, float, float], about: str
) -> Figure | None:
    if len(names) < 2:
        return None
    order = np.argsort(labels, kind="stable")
    order = order[_thinned(len(order), MOST_CELLS)]
    what, low, high = words
    marks = Heatmap(
        tuple(names[int(i)] for i in order),
        tuple(labels[order].tolist()),
        square[np.ix_(order, order)],
        low,
        high,
        what,
    )
    title = "Similarity of clients" if what == "cosine" else "Distances that were clustered"
    return Figure("similarity" if what == "cosine" else "distances", title, about, marks)


def _thinned(count: int, most: int) -> Array:
    """Return at most ``most`` of so many places, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
