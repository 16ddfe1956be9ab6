"""The defaults of training on a user's own tables, chosen by measurement (``benchmarks/tables.py``).

They take the place of the general defaults where data are tables and nothing else is given; whatever the user gives
stays, and so do the settings of a paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TABLES: Mapping[str, Any] = {
    "model": "tabular",
    "rounds": 30,
    "steps": 400,
    "epochs": 1,
    "batch": 32,
    "optimizer": "adam",
    "lr": 0.002,
    "lr_decay": 0.95,
    "weight_decay": 0.001,
}
"""The values of settings for tables."""

TOGETHER = (
    ("steps", "epochs"),
    ("epochs", "steps"),
    ("optimizer", "lr", "lr_decay", "weight_decay"),
    ("momentum", "optimizer", "lr", "lr_decay", "weight_decay"),
    ("momentum_kept", "optimizer", "lr", "lr_decay", "weight_decay"),
)
"""Where the first of these is given, the others are not those of tables."""


def with_table_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those for tables where none is given.

    >>> full = with_table_defaults({"steps": 5, "optimizer": "sgd"})
    >>> sorted(full)
    ['batch', 'model', 'optimizer', 'rounds', 'steps']
    """
    said = {name: value for name, value in given.items() if value is not None}
    decided = said.keys() | {name for first, *others in TOGETHER if first in said for name in others}
    return {**{name: value for name, value in TABLES.items() if name not in decided}, **said}
