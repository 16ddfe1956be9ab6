"""How a user's tables are to be read: which column is what, and what is done about missing values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from coterie.data.tables.problems import BadFile, Problem, Problems
from coterie.errors import DataError, UnknownName

if TYPE_CHECKING:
    from coterie.data.tables.tablefile import Table

MISSING = ("error", "mean")
TASKS = ("classification", "regression")


@dataclass(frozen=True)
class Reading:
    """Which column is the label, which names the client and its true group, and which are left out."""

    label: str = "label"
    client: str | None = None
    group: str | None = None
    ignore: tuple[str, ...] = ()
    missing: str = "error"
    task: str | None = None
    test: float = 0.2
    validation: float = 0.0
    seed: int = 1

    def words(self) -> dict[str, Any]:
        """The settings that say the same: what is not a default, but the seed, which is the run's."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        joined = {"ignore": ",".join(self.ignore)} if self.ignore else {}
        return {name: value for name, value in {**said, **joined}.items() if name != "seed"}

    def __post_init__(self) -> None:
        if not 0 < self.test < 1:
            raise DataError(f"test={self.test} must be between 0 and 1, such as 0.2")
        if not 0 <= self.validation < 1:
            raise DataError(f"validation={self.validation} must be between 0 and 1, such as 0.1")
        if self.missing not in MISSING:
            raise UnknownName("rule for missing values", str(self.missing), MISSING)
        if self.task not in (None, *TASKS):
            raise UnknownName("task", str(self.task), TASKS)
        named = [name for name in (self.label, self.client, self.group) if name is not None]
        for name in named:
            if named.count(name) > 1 or name in self.ignore:
                raise DataError(f"column {name!r} is asked to be two things; give label, client, group, ignore apart")

    @property
    def special(self) -> tuple[str, ...]:
        """The columns besides the features that are read: label, client, group."""
        return tuple(name for name in (self.label, self.client, self.group) if name is not None)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The columns that a later file may have and that say nothing."""
        return tuple(name for name in (*self.ignore, self.client, self.group) if name is not None)


@dataclass(frozen=True)
class Member:
    """A table and the client that it is all of; None where a column names the clients."""

    table: Table
    client: str | None


def usable(members: Sequence[Member], reading: Reading, problems: Problems) -> tuple[list[Member], tuple[str, ...]]:
    """The members whose columns are those of the first that has what is asked for, and the names of the features."""
    kept: list[Member] = []
    features: tuple[str, ...] = ()
    for member in members:
        table = member.table
        try:
            with_special(table, reading)
            own = tuple(name for name in table.columns if name not in (*reading.special, *reading.ignore))
            if not own:
                raise BadFile(table.file, None, "has no column besides the label", "add columns to learn from")
            if kept:
                _check_same(table.file, own, features, kept[0].table.file)
        except BadFile as error:
            problems.add(error.problem)
            continue
        features = features or own
        kept.append(member)
    _check_ignored(members, reading, problems)
    return kept, features


def with_special(table: Table, reading: Reading) -> None:
    """Refuse a table without the label, client or group column that was asked for."""
    for name, flag in ((reading.label, "label"), (reading.client, "client"), (reading.group, "group")):
        if name is not None and name not in table.columns:
            raise BadFile(table.file, None, *no_column(name, table.columns, f"name another with --{flag}"))


def no_column(name: str, columns: Sequence[str], remedy: str) -> tuple[str, str]:
    """What to say of a column that is not there."""
    shown = ", ".join(columns[:10]) + (", ..." if len(columns) > 10 else "")
    return f"has no column {name!r} but {shown}", remedy


def _check_same(file: str, own: Sequence[str], features: Sequence[str], first: str) -> None:
    for name in features:
        if name not in own:
            raise BadFile(file, None, f"has no column {name!r}, which {first} has", "all need the same columns")
    for name in own:
        if name not in features:
            what = f"has the column {name!r}, which {first} has not"
            raise BadFile(file, None, what, f"all need the same columns; add it there, or --ignore {name}")


def _check_ignored(members: Sequence[Member], reading: Reading, problems: Problems) -> None:
    for name in reading.ignore:
        if members and not any(name in member.table.columns for member in members):
            what, remedy = no_column(name, members[0].table.columns, "correct --ignore")
            problems.add(Problem(members[0].table.file, None, what, remedy))
