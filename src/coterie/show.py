"""Who holds what, for the terminal: a table of the true groups, and one of the clients with a bar of classes each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coterie.data import Federated
from coterie.data.federated import Array
from coterie.data.holdings import class_counts, find_duplicates
from coterie.data.tables import apportion
from coterie.newcomers import Placement
from coterie.plain import cell
from coterie.results.plots import COLOURS

MOST_ROWS = 60
MOST_COLUMNS = 12
"""With more classes than this their counts are left to the bars."""

BAR = 24
SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def facts(data: Federated) -> list[str]:
    """What there is to know in sentences: sizes, the majority class, duplicates, and what the partition noted."""
    counts, sizes = class_counts(data), data.train.sizes
    lines = [
        f"{data.data}, {data.partition}: {len(data)} clients, {len(data.train.y)} train, {len(data.test.y)} test",
        f"train examples a client: least {sizes.min()}, median {int(np.median(sizes))}, most {sizes.max()}",
    ]
    if data.classes is not None:
        own, pooled = counts.max(axis=1).sum() / counts.sum(), counts.sum(axis=0).max() / counts.sum()
        lines.append(f"majority class: {pooled:.1%} of all examples, {own:.1%} if each client guesses its own")
    named = [f"{SYMBOLS[i % len(SYMBOLS)]} {name}" for i, name in enumerate(data.class_names) if name != str(i)]
    legend = [f"classes: {', '.join(named)}"] if named else []
    return [*lines, *legend, str(find_duplicates(data)), *data.notes]


def group_table(data: Federated) -> Table | None:
    """One row a true group: its clients and its examples of each class; None where no groups are known."""
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
    """One row a client: its group, its sizes, its examples of each class, and these as a bar.

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
    """One row a cluster: a newcomer's score in it, the best first."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("cluster", "score"):
        table.add_column(title, justify="right")
    for cluster in np.argsort(found.scores)[::-1]:
        table.add_row(str(cluster), f"{found.scores[cluster]:.4g}", style="bold" if cluster == found.cluster else None)
    return table


def bar(counts: Array, width: int = BAR) -> Text:
    """A row of symbols, one class each, in proportion to how much of it there is.

    >>> bar(np.array([3, 0, 1]), 8).plain
    '00000022'
    """
    text = Text()
    for label, length in enumerate(apportion(width, counts)):
        text.append(SYMBOLS[label % len(SYMBOLS)] * int(length), style=f"black on {COLOURS[1 + label % 7]}")
    return text


def _table(data: Federated, before: Sequence[str], after: Sequence[str] = (), counted: bool = True) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    classes = range(data.classes or 0) if counted and _few(data) else ()
    for title in (*before, *(SYMBOLS[label] for label in classes), "train", *after):
        left = title in ("client", "group", "classes")
        table.add_column(title, justify="left" if left else "right", no_wrap=True)
    return table


def _cells(data: Federated, counts: Array, counted: bool = True) -> list[str]:
    shown = counts if counted and _few(data) else counts[:0]
    return [*(str(count) if count else "·" for count in shown), str(counts.sum())]


def _few(data: Federated) -> bool:
    return data.classes is not None and data.classes <= MOST_COLUMNS
