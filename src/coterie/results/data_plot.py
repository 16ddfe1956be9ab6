"""A picture of who holds what: a bar of classes for each client, true groups side by side."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from coterie.data.federated import Array, Federated
from coterie.data.holdings import class_counts
from coterie.plain import plain
from coterie.results.plots import STYLE

MOST_NAMES = 60
"""With more clients than this their names are left out."""


MOST_SAMPLES, EACH = 20, 2
"""Example images in the picture, and how many of them are of one client."""


def save_holdings(path: Path, data: Federated) -> None:
    """Train examples of every client by class, as counts and as shares, or the spread of its targets, as one PNG."""
    order = np.arange(len(data)) if data.groups is None else np.argsort(data.groups, kind="stable")
    with mpl.rc_context(STYLE):
        width = float(np.clip(0.16 * len(data), 7, 14))
        figure = Figure(figsize=(width, 5 + _has_images(data)), layout="constrained")
        bars, *rest = figure.subfigures(
            1 + _has_images(data), 1, height_ratios=[5, 1][: 1 + _has_images(data)], squeeze=False
        )[:, 0]
        counts, below = bars.subplots(2, 1, sharex=True)
        for part in rest:
            _samples(part, data)
        table = class_counts(data)[order]
        _bars(counts, table, data)
        counts.set_ylabel("train examples")
        if data.classes is None:
            _spread(below, data, order)
        else:
            _bars(below, table / np.maximum(table.sum(axis=1, keepdims=True), 1), data)
            below.set_ylabel("share")
            names = [plain(data.class_names[i]) if data.class_names else str(i) for i in range(data.classes)]
            columns = 1 + len(names) // 20
            bars.legend(counts.containers, names, loc="outside right upper", frameon=False, ncols=columns)
        _groups(counts, below, data, order)
        bars.suptitle(plain(f"{data.data}, {data.partition}, {len(data)} clients"), x=0.01, ha="left", fontsize=10)
        figure.savefig(path, dpi=120)


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
        below.set_xticks(range(len(data)), [plain(data.names[i]) for i in order], rotation=90, fontsize=6)
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


def _has_images(data: Federated) -> bool:
    return len(data.shape) == 3 and data.shape[0] in (1, 3)


def _samples(part: SubFigure, data: Federated) -> None:
    """The first examples of a few clients, one of each true group where groups are known, with the labels they bear."""
    if data.groups is None:
        chosen = np.unique(np.linspace(0, len(data) - 1, MOST_SAMPLES // EACH).astype(int))
    else:
        chosen = np.unique(data.groups, return_index=True)[1][: MOST_SAMPLES // EACH]
    places = part.subplots(1, EACH * len(chosen), squeeze=False)[0]
    for place, axes in enumerate(places):
        x, y = data.train.of(int(chosen[place // EACH]))
        row = min(place % EACH, len(y) - 1)
        picture = np.clip((x[row].transpose(1, 2, 0) + 1) / 2, 0, 1)
        axes.imshow(picture if picture.shape[-1] == 3 else picture[..., 0], cmap="gray_r", vmin=0, vmax=1)
        axes.set_axis_off()
        axes.set_title(str(y[row]), fontsize=7, pad=2)
        if place % EACH == 0:
            name = (
                plain(data.names[chosen[place // EACH]])
                if data.groups is None
                else f"group {data.groups[chosen[place // EACH]]}"
            )
            axes.text(0, -0.12, name, transform=axes.transAxes, fontsize=7, va="top")
