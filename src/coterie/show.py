"""Who holds what, as a table."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from coterie.data import Federated

MOST_ROWS = 60


def holdings(data: Federated) -> Table:
    """One row a client: group, train and test sizes, and its examples of each class."""
    caption = f"{data.data}, {data.partition}: {len(data)} clients, {len(data.train.y)} train, {len(data.test.y)} test"
    table = Table(caption="\n".join([caption, *data.notes]), caption_justify="left")
    for title in ("client", "group", "train", "test"):
        table.add_column(title, justify="left" if title == "client" else "right", no_wrap=True)
    for label in range(data.classes or 0):
        table.add_column(str(label), justify="right", no_wrap=True)
    for client in range(min(len(data), MOST_ROWS)):
        group = "—" if data.groups is None else str(data.groups[client])
        sizes = (str(data.train.sizes[client]), str(data.test.sizes[client]))
        table.add_row(data.names[client], group, *sizes, *_counts(data, client))
    if len(data) > MOST_ROWS:
        table.add_row(f"… {len(data) - MOST_ROWS} more")
    return table


def _counts(data: Federated, client: int) -> list[str]:
    if data.classes is None:
        return []
    counts = np.bincount(data.train.of(client)[1], minlength=data.classes)
    return [str(count) if count else "·" for count in counts]
