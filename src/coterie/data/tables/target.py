"""What a label column means: classes or targets, and which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from coterie.data.tables.cells import as_number, canonical, class_numbers, is_whole
from coterie.data.tables.problems import BadFile
from coterie.data.tables.rows import MOST_CLASSES, Labels
from coterie.typing import Array

MOSTLY = 0.9
"""A column with a larger share of numbers than this is one of numbers, and what else it has is dirt."""


def are_numbers(numbers: int, values: int) -> bool:
    """Whether a column with so many numbers among its values is one of numbers.

    >>> are_numbers(10, 10), are_numbers(95, 100), are_numbers(5, 10)
    (True, True, False)
    """
    return numbers == values or numbers > MOSTLY * values


def find_classes(file: str, label: str, labels: Labels, task: str | None) -> tuple[str, ...] | None:
    """The classes in order, or None where the labels are targets of a regression.

    Words and whole numbers are classes, other numbers are targets; ``task`` overrides that.
    """
    if not labels.present:
        raise BadFile(file, None, f"the label column {label!r} has no value", "name another with --label")
    numeric = are_numbers(int((~np.isnan(labels.numbers)).sum()), labels.present)
    if task == "regression" or (task is None and numeric and not _whole(labels)):
        if not numeric:
            word = next((word for word in labels.words if not _is_number(word)), labels.words[0])
            what = f"the label column {label!r} has words, such as {word!r}"
            raise BadFile(file, None, what, "a regression needs numbers; use --task classification")
        return None
    if labels.many:
        what = f"the label column {label!r} has more than {MOST_CLASSES} different values"
        raise BadFile(file, None, what, "if it is a quantity, use --task regression; or name another with --label")
    return _classes(file, label, labels.words, numeric)


def _whole(labels: Labels) -> bool:
    """Whether all labels that are numbers are whole ones, and written so as far as the words are known."""
    numbers = labels.numbers[np.isfinite(labels.numbers)]
    written = all(is_whole(word) for word in labels.words if _is_number(word))
    return written and bool((numbers == np.floor(numbers)).all())


def _is_number(word: str) -> bool:
    return is_whole(word) or as_number(word) is not None


def _classes(file: str, label: str, words: Sequence[str], numeric: bool) -> tuple[str, ...]:
    if numeric:
        # The few that are no numbers are refused where they stand, row by row.
        words = [word for word in words if _is_number(word)]
        broken = [word for word in words if not is_whole(canonical(word))]
        if broken:
            what = f"the label column {label!r} has {broken[0]}, which is no whole number"
            raise BadFile(file, None, what, "classes are whole numbers or words; use --task regression")
    classes = sorted({canonical(word) for word in words}, key=int) if numeric else sorted(words)
    return tuple(classes)


def label_numbers(labels: Labels, classes: Sequence[str] | None) -> Array:
    """Every row's class number, -1 where it has none; or its target."""
    if classes is None:
        return labels.numbers
    numbers = class_numbers(pl.Series(labels.words, dtype=pl.String), classes)
    return np.append(numbers, -1).astype(np.int32)[labels.codes]
