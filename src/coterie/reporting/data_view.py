"""Tables and pictures of the examples that clients have: ``coterie data show``."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coterie.data import Federated
from coterie.data.apportion import apportion
from coterie.data.federated import Split
from coterie.experiments.placement import Placement
from coterie.reporting.plots import COLOURS, STYLE
from coterie.terminal import cell, plain
from coterie.typing import Array


def class_counts(data: Federated) -> Array:
    """Return the number of train examples of each client and class; one column where an example has no class."""
    classes = data.target.one_of
    if classes is None:
        return data.train.sizes[:, None]
    owners = np.repeat(np.arange(len(data)), data.train.sizes)
    table = np.zeros((len(data), classes), np.int64)
    np.add.at(table, (owners, data.train.y), 1)
    return table


@dataclass(frozen=True)
class Duplicates:
    """How many train examples are repeats, and how many test examples are also somebody's train example."""

    inside: int
    across: int
    leaked: int

    def __str__(self) -> str:
        if not any((self.inside, self.across, self.leaked)):
            return "no duplicates"
        return (
            f"duplicates: {self.inside} train examples repeat one of the same client, {self.across} are held by "
            f"another client too, {self.leaked} test examples are also train examples"
        )


def find_duplicates(data: Federated) -> Duplicates:
    """Count equal rows of features, whatever their labels."""
    train = _prints(data.train)
    owners = np.repeat(np.arange(len(data)), data.train.sizes)
    unique = set(zip(train, owners.tolist(), strict=True))
    holders = Counter(print_ for print_, _ in unique)
    known = set(train)
    return Duplicates(
        inside=len(train) - len(unique),
        across=sum(holders[print_] > 1 for print_ in train),
        leaked=sum(print_ in known for print_ in _prints(data.test)),
    )


def _prints(split: Split) -> list[bytes]:
    """Return a fingerprint of every row; adding 0 makes -0 and 0 equal."""
    return [hashlib.blake2b((row + 0).tobytes(), digest_size=12).digest() for row in split.x]


MOST_NAMES = 60
"""With more clients than this their names are left out."""


MOST_SAMPLES, EACH = 20, 2
"""Example images in the picture, and how many of them are of one client."""


def save_holdings(path: Path, data: Federated) -> None:
    """Save the picture of who holds what."""
    draw_holdings(data).savefig(path, dpi=120)


def draw_holdings(data: Federated) -> Figure:
    """Draw the train examples of every client by class, as counts and shares, or the spread of its targets."""
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
        if data.target.one_of is None:
            _spread(below, data, order)
        else:
            _bars(below, table / np.maximum(table.sum(axis=1, keepdims=True), 1), data)
            below.set_ylabel("share")
            names = [plain(data.class_names[i]) if data.class_names else str(i) for i in range(data.target.one_of)]
            columns = 1 + len(names) // 20
            bars.legend(counts.containers, names, loc="outside right upper", frameon=False, ncols=columns)
        _groups(counts, below, data, order)
        bars.suptitle(plain(f"{data.data}, {data.partition}, {len(data)} clients"), x=0.01, ha="left", fontsize=10)
    return figure


def _bars(axes: Axes, table: Array, data: Federated) -> None:
    colours = mpl.colormaps["tab10" if table.shape[1] <= 10 else "nipy_spectral"]
    bottom = np.zeros(len(table))
    for label, column in enumerate(table.T):
        shade = colours(label if table.shape[1] <= 10 else label / (table.shape[1] - 1))
        axes.bar(np.arange(len(table)), column, bottom=bottom, width=0.9, color=shade)
        bottom += column


def _spread(axes: Axes, data: Federated, order: Array) -> None:
    targets = [data.train.of(int(client))[1] for client in order]
    if data.columns is not None:
        targets = [own.mean(axis=1) for own in targets]
    axes.boxplot(targets, positions=np.arange(len(order)), widths=0.7, showfliers=False)
    axes.set_ylabel("target" if data.columns is None else f"mean of {data.target}")


def _groups(top: Axes, below: Axes, data: Federated, order: Array) -> None:
    """Write the names of clients where there is room, and draw a line between true groups."""
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
    """Draw the first examples of a few clients with their labels; one client of each true group if known."""
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


MOST_ROWS = 60
MOST_COLUMNS = 12
"""With more classes than this their counts are left to the bars."""

BAR = 24
SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def facts(data: Federated) -> list[str]:
    """Return sentences about the data: sizes, the majority class, duplicates, and the notes of the partition."""
    counts, sizes = class_counts(data), data.train.sizes
    lines = [
        f"{data.data}, {data.partition}: {len(data)} clients, {len(data.train.y)} train, {len(data.test.y)} test",
        f"train examples a client: least {sizes.min()}, median {int(np.median(sizes))}, most {sizes.max()}",
    ]
    if data.target.one_of is not None:
        own, pooled = counts.max(axis=1).sum() / counts.sum(), counts.sum(axis=0).max() / counts.sum()
        lines.append(f"majority class: {pooled:.1%} of all examples, {own:.1%} if each client guesses its own")
    if data.columns is not None:
        return [*lines, _columns(data), str(find_duplicates(data)), *data.notes]
    named = [f"{SYMBOLS[i % len(SYMBOLS)]} {name}" for i, name in enumerate(data.class_names) if name != str(i)]
    legend = [f"classes: {', '.join(named)}"] if named else []
    return [*lines, *legend, str(find_duplicates(data)), *data.notes]


def _columns(data: Federated) -> str:
    """Return a sentence about the several labels, with the share of examples that have each, or about the targets."""
    if not data.target.is_labels:
        return f"{data.target} an example"
    names = data.class_names or tuple(map(str, range(data.train.y.shape[1])))
    shares = zip(names, data.train.y.mean(axis=0), strict=True)
    return f"labels: {', '.join(f'{name} {share:.1%}' for name, share in shares)}"


def group_table(data: Federated) -> Table | None:
    """Return a table with a row for each true group, of clients and examples by class; None if groups are unknown."""
    if data.groups is None:
        return None
    counts = class_counts(data)
    table = _table(data, ("group", "clients"))
    for group in np.unique(data.groups):
        mine = data.groups == group
        table.add_row(str(group), str(mine.sum()), *_cells(data, counts[mine].sum(axis=0)))
    table.add_section()
    table.add_row("all", str(len(data)), *_cells(data, counts.sum(axis=0)))
    return table


def client_table(data: Federated, console: Console) -> Table:
    """Return a table with a row for each client: its group, sizes, examples of each class, and these as a bar.

    On a narrow screen the counts are left to the bars.
    """
    full = _clients(data, counted=True)
    fits = full.__rich_measure__(console, console.options.update(max_width=1000)).maximum <= console.width
    return full if fits else _clients(data, counted=False)


def _clients(data: Federated, counted: bool) -> Table:
    counts = class_counts(data)
    table = _table(data, ("client", "group"), ("test", "classes"), counted)
    for client in range(min(len(data), MOST_ROWS)):
        group = "—" if data.groups is None else str(data.groups[client])
        cells = _cells(data, counts[client], counted)
        table.add_row(cell(data.names[client]), group, *cells, str(data.test.sizes[client]), bar(counts[client]))
    if len(data) > MOST_ROWS:
        table.add_row(f"… {len(data) - MOST_ROWS} more")
    return table


def placement_table(found: Placement) -> Table:
    """Return a table of a newcomer's score in each cluster, the best first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("cluster", "score"):
        table.add_column(title, justify="right")
    for cluster in np.argsort(found.scores)[::-1]:
        table.add_row(str(cluster), f"{found.scores[cluster]:.4g}", style="bold" if cluster == found.cluster else None)
    return table


def bar(counts: Array, width: int = BAR) -> Text:
    """Return a row of symbols, one for each class, in proportion to its examples.

    >>> bar(np.array([3, 0, 1]), 8).plain
    '00000022'
    """
    text = Text()
    for label, length in enumerate(apportion(width, counts)):
        text.append(SYMBOLS[label % len(SYMBOLS)] * int(length), style=f"black on {COLOURS[1 + label % 7]}")
    return text


def _table(data: Federated, before: Sequence[str], after: Sequence[str] = (), counted: bool = True) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    classes = range(data.target.one_of or 0) if counted and _few(data) else ()
    for title in (*before, *(SYMBOLS[label] for label in classes), "train", *after):
        left = title in ("client", "group", "classes")
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    return table


def _cells(data: Federated, counts: Array, counted: bool = True) -> list[str]:
    shown = counts if counted and _few(data) else counts[:0]
    return [*(str(count) if count else "·" for count in shown), str(counts.sum())]


def _few(data: Federated) -> bool:
    return (data.target.one_of or MOST_COLUMNS + 1) <= MOST_COLUMNS
