"""Labels: what the label columns of a user's tables are (classes, targets or several of either), and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.data.tables.cells import canonical, class_numbers, flag_of, is_number, is_whole
from coterie.data.tables.columns import are_numbers
from coterie.data.tables.problems import BadFile
from coterie.data.tables.spellings import spelt_label
from coterie.typing import Array

MOST_CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class RawLabels:
    """The labels of all rows in one column: as ``numbers`` where they are numbers, and as ``codes`` into ``words``.

    ``overflowed`` says that there are too many different words to list them, and ``present`` how many rows have a
    label at all.
    """

    numbers: Array
    codes: Array
    words: tuple[str, ...]
    overflowed: bool
    present: int


@dataclass(frozen=True)
class LabelFacts:
    """What a client tells of its label column before all agree on what it is: counts, and no label.

    ``present`` rows have a label, which is a number in ``numbers`` of them; ``whole``: all these are whole numbers;
    ``overflowed``: there are too many different labels to be classes; ``flags``: all are 0 or 1, or true or false.
    """

    present: int = 0
    numbers: int = 0
    whole: bool = True
    overflowed: bool = False
    flags: bool = True

    def __add__(self, other: LabelFacts) -> LabelFacts:
        return LabelFacts(
            self.present + other.present,
            self.numbers + other.numbers,
            self.whole and other.whole,
            self.overflowed or other.overflowed,
            self.flags and other.flags,
        )

    @property
    def numeric(self) -> bool:
        """Whether it is a column of numbers, perhaps with some errors."""
        return are_numbers(self.numbers, self.present)


def label_facts(labels: RawLabels) -> LabelFacts:
    """Return the facts about a label column."""
    numbers = int((~np.isnan(labels.numbers)).sum())
    flags = all(flag_of(word) >= 0 for word in labels.words)
    return LabelFacts(labels.present, numbers, _are_whole(labels), labels.overflowed, flags)


def find_classes(file: str, label: str, labels: RawLabels, task: str | None) -> tuple[str, ...] | None:
    """Return the classes in order, or None where the labels are targets of a regression."""
    facts = label_facts(labels)
    if are_targets(file, label, facts, task, labels.words):
        return None
    return class_names(file, label, labels.words, facts.numeric)


def are_targets(file: str, label: str, facts: LabelFacts, task: str | None, words: Sequence[str] = ()) -> bool:
    """Return whether the labels are targets of a regression; refuse a column that cannot be what ``task`` says.

    Words and whole numbers are classes, other numbers are targets; ``task`` overrides that. ``words`` are some of the
    labels, for an example in an error.
    """
    if not facts.present:
        raise BadFile(file, None, f"the label column {label!r} has no value", "name another with --label")
    if not facts.numeric and (task == "regression" or facts.overflowed):
        _refuse_spelling(file, label, words)
    if task == "multilabel":
        what = f"{label!r} is one label column"
        raise BadFile(file, None, what, "several labels need several columns: name them with --label a,b")
    if task == "regression" or (task is None and facts.numeric and not facts.whole):
        if not facts.numeric:
            example = [f", such as {word!r}" for word in words if not is_number(word)][:1]
            what = f"the label column {label!r} has words{''.join(example)}"
            other = "name another with --label" if facts.overflowed else "use --task classification"
            raise BadFile(file, None, what, f"a regression needs numbers; {other}")
        return True
    if facts.overflowed:
        what = f"the label column {label!r} has more than {MOST_CLASSES} different values"
        remedy = (
            "if it is a quantity, use --task regression; or " if facts.numeric else "that is too many for classes; "
        )
        raise BadFile(file, None, what, f"{remedy}name another with --label")
    return False


def _refuse_spelling(file: str, label: str, words: Sequence[str]) -> None:
    """Refuse labels that are dates, or numbers that are written in a way that is not read."""
    way = spelt_label(words)
    if way is not None:
        raise BadFile(file, None, f"the label column {label!r} {way}", f"{way.remedy}, or name another with --label")


def class_names(file: str, label: str, words: Sequence[str], numeric: bool) -> tuple[str, ...]:
    """Return the classes that these labels name, in order; ``numeric``: they are whole numbers, perhaps with errors."""
    return _whole_classes(file, label, words) if numeric else tuple(sorted(set(words)))


def are_flags(
    file: str,
    names: Sequence[str],
    facts: Sequence[LabelFacts],
    task: str | None,
    words: Sequence[Sequence[str]] | None = None,
) -> bool:
    """Return whether several label columns are labels, each 0 or 1; False where all are targets of a regression.

    Columns of nothing but 0 and 1, or true and false, are labels and other numbers are targets; ``task`` overrides
    that, and a mixture is refused. ``words`` are some labels of each column, for an example in an error.
    """
    if task == "classification":
        what = f"{len(names)} label columns are named, {', '.join(names)}"
        raise BadFile(file, None, what, "a classification has one; use --task multilabel or regression")
    every = dict(zip(names, facts, strict=True))
    examples = dict(zip(names, words or [()] * len(names), strict=True))
    for name, own in every.items():
        if not own.present:
            raise BadFile(file, None, f"the label column {name!r} has no value", "name another with --label")
    others = [name for name, own in every.items() if not own.flags]
    if task == "multilabel" and others:
        word = _example(examples[others[0]], lambda word: flag_of(word) < 0, "other values than 0 and 1")
        what = f"the label column {others[0]!r} has {word}"
        raise BadFile(file, None, what, "each of several labels must be 0 or 1, or true or false")
    if not others and task != "regression":
        return True
    _require_numbers(file, every, examples)
    if others and len(others) < len(names) and task is None:
        flag = next(name for name in names if name not in others)
        what = f"the label column {flag!r} has only 0 and 1, and {others[0]!r} has other numbers"
        raise BadFile(file, None, what, "name labels or targets, or take all for targets with --task regression")
    return False


def _require_numbers(file: str, every: Mapping[str, LabelFacts], examples: Mapping[str, Sequence[str]]) -> None:
    """Refuse a label column that has words among several of numbers."""
    for name, own in every.items():
        if not own.numeric:
            word = _example(examples[name], lambda word: not is_number(word), "a word")
            what = f"the label column {name!r} has {word}, which is no number"
            raise BadFile(file, None, what, "several labels must all be numbers, or all be 0 or 1; name such columns")


def _example(words: Sequence[str], wanted: Callable[[str], bool], otherwise: str) -> str:
    """Return the first word that is wanted, quoted; or what to say where no words are known."""
    return next((repr(word) for word in words if wanted(word)), otherwise)


def _are_whole(labels: RawLabels) -> bool:
    """Return whether all labels that are numbers are whole, and written without a decimal point."""
    numbers = labels.numbers[np.isfinite(labels.numbers)]
    written = all(is_whole(word) for word in labels.words if is_number(word))
    return written and bool((numbers == np.floor(numbers)).all())


def _whole_classes(file: str, label: str, words: Sequence[str]) -> tuple[str, ...]:
    # The few words that are not numbers are refused row by row when the labels are encoded.
    numbers = [word for word in words if is_number(word)]
    broken = [word for word in numbers if not is_whole(canonical(word))]
    if broken:
        what = f"the label column {label!r} has {broken[0]}, which is not a whole number"
        raise BadFile(file, None, what, "classes are whole numbers or words; use --task regression")
    return tuple(sorted({canonical(word) for word in numbers}, key=int))


def label_numbers(every: Sequence[RawLabels], classes: Sequence[str] | None) -> Array:
    """Return the class number of every row, -1 where it has none; or its target, or several, where there are none."""
    if len(every) > 1:
        return np.column_stack([own.numbers for own in every])
    (labels,) = every
    if classes is None:
        return labels.numbers
    import polars as pl

    numbers = class_numbers(pl.Series(labels.words, dtype=pl.String), classes)
    return np.append(numbers, -1).astype(np.int32)[labels.codes]
