"""What is predicted of an example: one of some classes, labels that are each 0 or 1, a number, or several numbers."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.errors import DataError

BINARY = 2
"""The values of a label where an example has several: 0 and 1."""


@dataclass(frozen=True)
class Target:
    """The kind of a prediction.

    classes  the number of values of a label, None where it is a number
    columns  how many labels, each 0 or 1, or numbers an example has; None: one

    >>> [str(each) for each in (Target(3), Target(), Target(2, 5), Target(None, 5))]
    ['3 classes', 'a real target', '5 labels', '5 real targets']
    """

    classes: int | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        if self.columns is None:
            return
        if self.columns < 2:
            raise DataError(f"columns is {self.columns}; several labels or targets are at least 2, and one is None")
        if self.classes not in (None, BINARY):
            raise DataError(f"{self.columns} labels have {self.classes} values; with several labels each is 0 or 1")

    def __str__(self) -> str:
        if self.columns is None:
            return "a real target" if self.classes is None else f"{self.classes} classes"
        return f"{self.columns} {'real targets' if self.classes is None else 'labels'}"

    @property
    def width(self) -> int:
        """The number of outputs of a network that predicts it."""
        return self.columns or (1 if self.classes is None else self.classes)

    @property
    def one_of(self) -> int | None:
        """The number of classes where an example has exactly one; None for labels and numbers."""
        return self.classes if self.columns is None else None

    @property
    def is_labels(self) -> bool:
        """Whether an example has several labels, each 0 or 1."""
        return self.columns is not None and self.classes is not None

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of what is predicted of one example."""
        return () if self.columns is None else (self.columns,)
