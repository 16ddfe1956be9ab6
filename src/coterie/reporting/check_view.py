"""The table of what each client has: ``coterie data check``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from coterie.data.tables.problems import Check, Holding
from coterie.terminal import cell

MOST_ROWS, EXTREMES = 15, 3
"""With more clients than this, a table has the extremes only: this many at each end."""

MOST_CLASSES = 4
"""With more classes than this, a table has each client's largest class only."""


def holdings_table(check: Check) -> Table:
    """Return rows, labels and missing values of each client; of many clients the extremes."""
    shown = extremes(check.holdings)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    names = [name for name, _ in check.counts]
    regression = any(each.mean is not None for each in shown)
    several = 0 < len(names) <= MOST_CLASSES
    labels = ["mean", "deviation"] if regression else [f"{name} %" for name in names] if several else []
    labels = labels or (["classes", "largest class"] if names else [])
    for title in ("client", "train", "test", *labels, "missing %"):
        left = title in ("client", "largest class")
        table.add_column(cell(title), justify="left" if left else "right", no_wrap=True)
    for each in shown:
        own = _target(each) if regression else _shares(each) if several else _largest(each, names)
        table.add_row(cell(each.client, longest=40), str(each.train), str(each.test), *own, f"{100 * each.missing:.1f}")
    if len(shown) < len(check.holdings):
        table.caption = f"{len(shown)} of {len(check.holdings)} clients: those with the least and the most in a column"
    return table


def extremes(holdings: Sequence[Holding]) -> list[Holding]:
    """Return all clients, or of many those at either end of rows, of labels, and with most missing, in order."""
    if len(holdings) <= MOST_ROWS:
        return list(holdings)
    numbers = list(range(len(holdings)))
    chosen = set[int]()
    for key in _KEYS:
        order = sorted(numbers, key=lambda i: key(holdings[i]))
        if key(holdings[order[0]]) < key(holdings[order[-1]]):
            chosen |= {*order[:EXTREMES], *order[-EXTREMES:]}
    return [holdings[i] for i in sorted(chosen)] or list(holdings[:MOST_ROWS])


def _main_label(holding: Holding) -> float:
    """Return the mean of the target, or the share of the last class, which is the second of two."""
    if holding.mean is not None:
        return holding.mean
    return holding.counts[-1] / max(1, sum(holding.counts)) if holding.counts else 0.0


_KEYS: tuple[Callable[[Holding], float], ...] = (lambda each: each.train, _main_label, lambda each: each.missing)


def _target(holding: Holding) -> list[str]:
    return ["—" if value is None else f"{value:.4g}" for value in (holding.mean, holding.std)]


def _shares(holding: Holding) -> list[str]:
    total = max(1, sum(holding.counts))
    return [f"{100 * count / total:.1f}" for count in holding.counts]


def _largest(holding: Holding, names: Sequence[str]) -> list[object]:
    """Return how many classes a client has, and its largest with its share; nothing where there are no classes."""
    if not names:
        return []
    there, total = sum(count > 0 for count in holding.counts), sum(holding.counts)
    if not total:
        return ["0", "—"]
    best = max(range(len(holding.counts)), key=lambda label: holding.counts[label])
    return [str(there), cell(f"{names[best]} {100 * holding.counts[best] / total:.1f} %", longest=30)]
