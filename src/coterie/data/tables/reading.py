"""Reading: the options that say how a user's own files are read, each declared once and here.

To add an option, add a field with its default and help text, and act on it where the files are read. The arguments of
``load_own``, the settings of a run, the flags of the command line and the keys of a site's configuration follow from
``fields(Reading)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from inspect import Parameter, signature
from typing import Any, TypeVar

from coterie.errors import DataError, UnknownName
from coterie.typed import check_types

Function = TypeVar("Function", bound=Callable[..., Any])

LISTS = ("attribute", "ignore", "categorical")
"""The options that name several columns."""


def _option(default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a user's own files are read: the columns of a table, missing values, and the shares set aside.

    ``metadata`` of a field holds its ``help`` and, where only some values are allowed, its ``choices``.

    >>> Reading(label="outcome", ignore="id, date").ignore
    ('id', 'date')
    """

    label: str = _option("label", "own tables: the column to predict, or several, separated by commas")
    client: str | None = _option(None, "own tables: the column that names the client, for one table of all clients")
    group: str | None = _option(None, "own tables: the column of the true group, for scoring only")
    attribute: tuple[str, ...] = _option(
        (), "own tables: columns with one value for each client, for given(COLUMN) and no features, separated by commas"
    )
    ignore: tuple[str, ...] = _option((), "own tables: columns to leave out, separated by commas")
    categorical: tuple[str, ...] = _option(
        (), "own tables: columns of numbers or dates that are categories, such as postcodes, separated by commas"
    )
    missing: str = _option(
        "error",
        "own tables: missing values are an error, take the mean, or also say so in an input of their own (indicator)",
        ("error", "mean", "indicator"),
    )
    drop_missing_labels: bool = _option(False, "own tables: leave out rows without a label")
    task: str | None = _option(
        None,
        "own data: classification, regression or multilabel (by the label's values)",
        ("classification", "regression", "multilabel"),
    )
    tokens: bool = _option(False, "own .npz files: x are tokens, whole numbers that stand for words")
    test: float = _option(0.2, "own data: share of each client's examples that is set aside for testing")
    validation: float = _option(0.0, "share of each client's train data set aside for validation")
    seed: int = _option(1, "the seed of the examples that are set aside")

    def __post_init__(self) -> None:
        for listed in LISTS:
            object.__setattr__(self, listed, _names(getattr(self, listed)))
        object.__setattr__(self, "label", _joined(self.label))
        check_types(self)
        for option in fields(self):
            value, choices = getattr(self, option.name), option.metadata["choices"]
            if choices and value not in (option.default, *choices):
                raise UnknownName(f"value of {option.name}", str(value), choices)
        if not self.labels:
            raise DataError(f"label={self.label!r} names no column; name one, or several separated by commas")
        if not 0 < self.test < 1:
            raise DataError(f"test={self.test} must be between 0 and 1, such as 0.2")
        if not 0 <= self.validation < 1:
            raise DataError(f"validation={self.validation} must be between 0 and 1, such as 0.1")
        named = [(option, name) for option, names in self._named().items() for name in names]
        for name in (*self.roles, *self.categorical):
            options = [option for option, other in named if other == name]
            if len(options) > 1:
                raise DataError(f"column {name!r} is named twice, by {' and by '.join(options)}; name a column once")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Reading:
        """Return the reading of these options; None stands for the default.

        >>> Reading.from_options({"lable": "outcome"})
        Traceback (most recent call last):
        coterie.errors.UnknownName: unknown option 'lable'; did you mean 'label'? known: attribute, categorical, ...
        """
        names = [option.name for option in fields(cls)]
        for name in options:
            if name not in names:
                raise UnknownName("option", name, names)
        return cls(**{name: value for name, value in options.items() if value is not None})

    def words(self) -> dict[str, Any]:
        """Return the options that differ from their defaults as settings of a run, except the seed."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        changed |= {listed: ",".join(changed[listed]) for listed in LISTS if listed in changed}
        changed.pop("seed", None)
        return changed

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns to predict."""
        return _names(self.label) if "," in self.label else (self.label,)

    @property
    def roles(self) -> tuple[str, ...]:
        """The columns that are no features: labels, client, group and attributes."""
        single = (name for name in (self.client, self.group) if name is not None)
        return (*self.labels, *single, *self.attribute)

    def option_of(self, name: str) -> str:
        """Return the option that names a column of these."""
        return next(option for option, names in self._named().items() if name in names)

    def _named(self) -> dict[str, tuple[str, ...]]:
        """Return the columns that each option names."""
        single = {option: getattr(self, option) for option in ("client", "group")}
        own = {option: () if name is None else (name,) for option, name in single.items()}
        return {"label": self.labels, **own, **{option: getattr(self, option) for option in LISTS}}

    @property
    def ignored(self) -> tuple[str, ...]:
        """The columns that a later file may have and that are not read from it."""
        return tuple(name for name in (*self.ignore, *self.attribute, self.client, self.group) if name is not None)


def with_reading_options(function: Function) -> Function:
    """Show the fields of ``Reading`` in the signature of a function that takes them as ``**options``."""
    shown = signature(function)
    own = [each for each in shown.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    options = [
        Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
        for option in fields(Reading)
    ]
    function.__dict__["__signature__"] = shown.replace(parameters=[*own, *options])
    return function


def _joined(columns: Any) -> Any:
    """Return the names of columns as one text with commas; what is no names stays as it is."""
    names = columns if isinstance(columns, str) else _names(columns)
    return ",".join(names) if isinstance(names, tuple) and all(isinstance(name, str) for name in names) else names


def _names(columns: Any) -> Any:
    """Return the names of columns, given one by one or as one text with commas; what is no names stays as it is."""
    if isinstance(columns, str):
        return tuple(name.strip() for name in columns.split(",") if name.strip())
    return tuple(columns) if isinstance(columns, Iterable) else columns
