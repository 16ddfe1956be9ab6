"""Inputs: what each number that a network is given stands for, in the words and units of the user's table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coterie.data.tables.features import Category, Date, Feature, Number
from coterie.data.tables.schema import Schema


@dataclass(frozen=True)
class Input:
    """One input: the column it comes from, the ``value`` whose presence it marks, and how it was scaled.

    ``value`` is None for a number; such an input is ``(number - mean) / std``.

    >>> str(Input("age", mean=40.0, std=10.0)), str(Input("sex", "f"))
    ('age', 'sex=f')
    """

    column: str
    value: str | None = None
    mean: float = 0.0
    std: float = 1.0

    def __str__(self) -> str:
        return self.column if self.value is None else f"{self.column}={self.value}"

    @property
    def is_share(self) -> bool:
        """Whether its mean is a share of rows."""
        return self.value is not None


def inputs_of(schema: Schema) -> tuple[Input, ...]:
    """Return the inputs that a schema makes of a row, in order.

    >>> from coterie.data.tables.features import Category
    >>> features = Number("age", 40.0, 10.0), Category("sex", ("f", "m"))
    >>> [str(each) for each in inputs_of(Schema(features=features, label="ill", classes=("no", "yes")))]
    ['age', 'sex=f', 'sex=m']
    """
    return tuple(_inputs_of(schema))


def _inputs_of(schema: Schema) -> Iterator[Input]:
    for feature in schema.features:
        if isinstance(feature, Number | Date):
            yield Input(feature.name, mean=feature.mean, std=feature.std)
        yield from (Input(feature.name, value) for value in _values(feature))
        if isinstance(feature, Date):
            cycles = ("year", "week", *(["day"] if feature.hours else []))
            yield from (
                Input(f"{feature.name}, {wave} of the {each}") for each in cycles for wave in ("sine", "cosine")
            )
        if feature.indicator:
            yield Input(feature.name, "missing")


def _values(feature: Feature) -> tuple[str, ...]:
    """Return the values of a column that have an input each; where some share one, the numbers of these inputs."""
    if isinstance(feature, Number | Category):
        return feature.values
    return () if isinstance(feature, Date) else tuple(f"#{number}" for number in range(feature.buckets))


def labels_of(schema: Schema) -> tuple[Input, ...]:
    """Return what is predicted, in the same way: a target, several, classes, or several labels.

    >>> [str(each) for each in labels_of(Schema(features=(), label="ill", classes=("no", "yes")))]
    ['ill=no', 'ill=yes']
    """
    numbers = (*schema.outputs, *(() if schema.target is None else (schema.target,)))
    if numbers:
        return tuple(
            Input(each.name, mean=each.mean, std=each.std) if isinstance(each, Number) else Input(each.name, "1")
            for each in numbers
        )
    return tuple(Input(schema.label, name) for name in schema.classes or ())
