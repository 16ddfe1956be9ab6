"""The table of what sets the clusters apart."""

from __future__ import annotations

from rich import box
from rich.table import Table

from coterie.experiments.apart import FEWEST, Apart, ClusterApart, Difference
from coterie.reporting.comparison import who
from coterie.terminal import cell

TOP = 3
"""Differences of each cluster that are shown at the end of a run."""

MOST_NAMES = 5
"""Names of clients without sums that are shown."""


def apart_table(found: Apart, top: int = TOP) -> Table:
    """Return the ``top`` largest certain differences of each cluster from the other clients."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    table.title = "what sets the clusters apart"
    for title in ("cluster", "clients", "differs in", "cluster's", "others'", "difference"):
        table.add_column(title, justify="left" if title == "differs in" else "right", no_wrap=title != "differs in")
    for each in found.clusters:
        first = (str(each.cluster), str(each.clients))
        for place, row in enumerate(_rows(each, top)):
            table.add_row(*(first if place == 0 else ("", "")), *map(cell, row))
    table.caption = _caption(found)
    return table


def _rows(cluster: ClusterApart, top: int) -> list[tuple[str, ...]]:
    if not cluster.judged:
        few = f"its {cluster.clients}" if cluster.clients < FEWEST else f"the {cluster.others} others"
        return [(f"cannot tell: {few} are too few", "", "", "")]
    return [_cells(each) for each in cluster.certain[:top]] or [("nothing certain", "", "", "")]


def _cells(difference: Difference) -> tuple[str, ...]:
    """Return a row of the table: shares in percent and their difference in points, others in units and deviations.

    >>> found = Difference(column="age", is_share=False, cluster=71.23, rest=54.0, effect=1.1, low=0.4, high=1.8,
    ...                    strength=1.1)
    >>> _cells(found)
    ('age', '71.23', '54', '+1.10 sd [+0.40, +1.80]')
    """
    ends = (difference.effect, difference.low, difference.high)
    if difference.is_share:
        effect, low, high = (f"{100 * each:+.1f}" for each in ends)
        shares = (f"{100 * each:.1f} %" for each in (difference.cluster, difference.rest))
        return difference.column, *shares, f"{effect} points [{low}, {high}]"
    effect, low, high = (f"{each:+.2f}" for each in ends)
    return difference.column, f"{difference.cluster:.4g}", f"{difference.rest:.4g}", f"{effect} sd [{low}, {high}]"


def _caption(found: Apart) -> str:
    said = (
        f"Means over clients; train rows. The intervals of all {found.looked_at} columns and values hold together with "
        f"{found.level:.0%} (Bonferroni). They describe these clusters and do not prove that they are real."
    )
    silent = f"{len(found.silent)} clients gave no sums: {who(found.silent, MOST_NAMES)}"
    return "\n".join([*([said] if found.clusters else []), *([silent] if found.silent else [])])
