"""Problems of a user's files: where, what, and what to do; collected, so that one look shows them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.errors import DataError


@dataclass(frozen=True)
class Problem:
    """Something in a file that cannot be used; ``row`` is a line of a .csv file as an editor counts them.

    In other tables it is the number of the row, counted from 1; None concerns the file as a whole.

    >>> print(Problem("bern.csv", 7, "column 'age' is missing a value", "fill it in"))
    bern.csv, line 7: column 'age' is missing a value; fill it in
    """

    file: str
    row: int | None
    what: str
    remedy: str

    def __str__(self) -> str:
        unit = "line" if self.file.lower().endswith(".csv") else "row"
        place = "" if self.row is None else f", {unit} {self.row}"
        return " ".join(f"{self.file}{place}: {self.what}; {self.remedy}".split())


class BadFile(DataError):
    """A file that cannot be read on, with the problem that ends the reading."""

    def __init__(self, file: Path | str, row: int | None, what: str, remedy: str) -> None:
        self.problem = Problem(str(file), row, what, remedy)
        super().__init__(str(self.problem))


class Problems:
    """A growing list of problems; the same one in many rows is listed once, at its first row, with how often."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Problem] = {}
        self._times: dict[tuple[str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, problem: Problem) -> None:
        """One more problem, unless it is known already."""
        key = problem.file, f"{problem.row}: {problem.what}"
        self._found.setdefault(key, problem)
        self._times[key] = 1

    def add_rows(self, file: str, kind: str, times: int, first: Callable[[], Problem]) -> None:
        """A kind of problem in several rows of a file; ``first`` describes the first and is asked for once."""
        if (file, kind) not in self._found:
            self._found[file, kind] = first()
        self._times[file, kind] = self._times.get((file, kind), 0) + times

    def all(self) -> tuple[Problem, ...]:
        """The problems in the order in which they were found."""
        return tuple(_often(problem, self._times[key]) for key, problem in self._found.items())

    def refuse(self, path: Path | str) -> None:
        """Raise the first problem, if there is any, and say how many more there are."""
        found = self.all()
        if found:
            more = f" (and {len(found) - 1} more: coterie data check {path} lists them)" if len(found) > 1 else ""
            raise DataError(f"{found[0]}{more}")


def _often(problem: Problem, times: int) -> Problem:
    return problem if times == 1 else replace(problem, what=f"{problem.what} (and in {times - 1} more rows)")
