"""A picture of who holds what: a bar of classes for each client, true groups side by side."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.data.federated import Array, Federated
from coterie.data.holdings import class_counts
from coterie.results.plots import STYLE

MOST_NAMES = 60
"""With more clients than this their names are left out."""


def save_holdings(path: Path, data: Federated) -> None:
    """Train examples of every client by class, as counts and as shares, or the spread of its targets, as one PNG."""
    order = np.arange(len(data)) if data.groups is None else np.argsort(data.groups, kind="stable")
    with mpl.rc_context(STYLE):
        width = float(np.clip(0.16 * len(data), 7, 14))
        figure = Figure(figsize=(width, 5), layout="constrained")
        counts, below = figure.subplots(2, 1, sharex=True)
        table = class_counts(data)[order]
        _bars(counts, table, data)
        counts.set_ylabel("train examples")
        if data.classes is None:
            _spread(below, data, order)
        else:
            _bars(below, table / np.maximum(table.sum(axis=1, keepdims=True), 1), data)
            below.set_ylabel("share")
            names = [data.class_names[i] if data.class_names else str(i) for i in range(data.classes)]
            columns = 1 + len(names) // 20
            figure.legend(counts.containers, names, loc="outside right upper", frameon=False, ncols=columns)
        _groups(counts, below, data, order)
        figure.suptitle(f"{data.data}, {data.partition}, {len(data)} clients", x=0.01, ha="left", fontsize=10)
        figure.savefig(path, dpi=150)


def _bars(axes: Axes, table: Array, data: Federated) -> None:
    colours = mpl.colormaps["tab10" if table.shape[1] <= 10 else "nipy_spectral"]
    bottom = np.zeros(len(table))
    for label, column in enumerate(table.T):
        shade = colours(label if table.shape[1] <= 10 else label / (table.shape[1] - 1))
        axes.bar(np.arange(len(table)), column, bottom=bottom, width=0.9, color=shade)
        bottom += column


def _spread(axes: Axes, data: Federated, order: Array) -> None:
    targets = [data.train.of(int(client))[1] for client in order]
    axes.boxplot(targets, positions=np.arange(len(order)), widths=0.7, showfliers=False)
    axes.set_ylabel("target")


def _groups(top: Axes, below: Axes, data: Federated, order: Array) -> None:
    """Names of clients where there is room, and a line between true groups."""
    below.set_xlim(-0.7, len(data) - 0.3)
    if len(data) <= MOST_NAMES:
        below.set_xticks(range(len(data)), [data.names[i] for i in order], rotation=90, fontsize=6)
    else:
        below.set_xticks([])
    below.set_xlabel("clients" if data.groups is None else "clients, by true group")
    if data.groups is None:
        return
    found, first, sizes = np.unique(data.groups[order], return_index=True, return_counts=True)
    for group, start, size in zip(found, first, sizes, strict=True):
        top.annotate(
            str(group), (start + size / 2 - 0.5, 1.01), xycoords=("data", "axes fraction"), ha="center", fontsize=8
        )
        for axes in (top, below) if start else ():
            axes.axvline(start - 0.5, color="black", linewidth=0.8, linestyle=":")
