"""Problems of a user's files (where, what and the remedy), collected so that one check shows them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.errors import DataError

MAJORITY = 0.9
"""A class with a larger share of the examples than this is worth a note."""

RARE = 10
"""A class with fewer examples than this is worth a note."""

SHOWN = 20
"""Classes that a report lists."""

NAMES, SAME = 5, 10
"""Names that a sentence lists, and names of others that have the same problem."""

FRAME = "the frame"
"""What problems call a table in memory."""

Counts = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Problem:
    """Something in a file that cannot be used.

    ``row`` is a line of a .csv file as editors count them, or the number of a row counted from 1 in other tables; None
    concerns the file as a whole.

    >>> print(Problem("bern.csv", 7, "column 'age' is missing a value", "fill it in"))
    bern.csv, line 7: column 'age' is missing a value; fill it in
    """

    file: str
    row: int | None
    what: str
    remedy: str

    def __str__(self) -> str:
        unit = "line" if self.file.lower().endswith(".csv") else "row"
        where = self.file if self.row is None else f"{self.file}, {unit} {self.row}"
        remedy = in_python(self.remedy) if self.file == FRAME else self.remedy
        return " ".join(f"{where}: {self.what}; {remedy}".split())


def in_python(remedy: str) -> str:
    """Return a remedy with arguments in the place of flags, because a table in memory is given by Python.

    >>> in_python("leave it empty with --missing mean, or --ignore shoe size"), in_python("name another with --label")
    ("leave it empty with missing='mean', or ignore='shoe size'", 'name another with label=')
    """
    checked = re.sub(r"coterie data check .+ lists them", "ct.check_own lists them", remedy)
    named = re.sub(r"--(ignore) (.+?)(?= \(and \d+ more: |$)", r"\1='\2'", checked)
    valued = re.sub(r"--(missing|task) (\w+)", r"\1='\2'", named)
    valued = re.sub(r"--drop-missing-labels", "drop_missing_labels=True", valued)
    return re.sub(r"--([\w-]+)", lambda option: option[1].replace("-", "_") + "=", valued)


@contextmanager
def python_words() -> Iterator[None]:
    """Turn flags into arguments in errors about data, for functions that people call from Python."""
    try:
        yield
    except DataError as error:
        error.args = (in_python(str(error)),)
        raise


class BadFile(DataError):
    """A file that cannot be read any further, with the problem that stopped the reading."""

    def __init__(self, file: Path | str, row: int | None, what: str, remedy: str) -> None:
        self.problem = Problem(str(file), row, what, remedy)
        super().__init__(str(self.problem))


@dataclass(frozen=True)
class Unseen:
    """Rows with a value of a category that training never saw; ``marked``: an input says that there is none.

    >>> print(Unseen("vehicle", 4, "tractor", marked=True))
    4 rows have a value of 'vehicle' that training never saw, such as 'tractor'; they are read as missing
    """

    column: str
    rows: int
    example: str
    marked: bool

    def __str__(self) -> str:
        read_as = "missing" if self.marked else "none of its values, which training never saw either: rely on them less"
        have, they_are = ("row has", "it is") if self.rows == 1 else ("rows have", "they are")
        what = f"{self.rows} {have} a value of {self.column!r} that training never saw, such as {self.example!r}"
        return f"{what}; {they_are} read as {read_as}"


class Problems:
    """A growing list of problems; the same one in many rows is listed once, with its first row and the count.

    Values that training never saw, where they are read all the same, are counted beside them.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Problem] = {}
        self._times: dict[tuple[str, str], int] = {}
        self._unseen: dict[str, Unseen] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, problem: Problem) -> None:
        """Add a problem, unless it is listed already."""
        key = problem.file, f"{problem.row}: {problem.what}"
        self._found.setdefault(key, problem)
        self._times[key] = 1

    def add_rows(self, file: str, kind: str, times: int, first: Callable[[], Problem]) -> None:
        """Add a kind of problem that several rows of a file have; ``first`` is called once, to describe the first."""
        if (file, kind) not in self._found:
            self._found[file, kind] = first()
        self._times[file, kind] = self._times.get((file, kind), 0) + times

    def add_unseen(self, found: Unseen) -> None:
        """Count rows with values of a column that training never saw."""
        before = self._unseen.setdefault(found.column, replace(found, rows=0))
        self._unseen[found.column] = replace(before, rows=before.rows + found.rows)

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each column that has values that training never saw."""
        return tuple(map(str, self._unseen.values()))

    def all(self) -> tuple[Problem, ...]:
        """Return the problems in the order in which they were found."""
        return tuple(_repeated(problem, self._times[key]) for key, problem in self._found.items())

    def refuse(self, path: Path | str) -> None:
        """Raise the first problem and the number of others, if there is any."""
        found = self.all()
        if found:
            lister = "ct.check_own" if path == FRAME else f"coterie data check {path}"
            more = f" (and {len(found) - 1} more: {lister} lists them)" if len(found) > 1 else ""
            raise DataError(f"{found[0]}{more}")


def _repeated(problem: Problem, times: int) -> Problem:
    return problem if times == 1 else replace(problem, what=f"{problem.what} (and in {times - 1} more rows)")


def alike(items: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return one line for each kind of sentence; an item is its line, its kind, and the name that is its own.

    >>> alike([("column 'a' is empty", "empty", "'a'"), ("column 'b' is empty", "empty", "'b'")])
    ["column 'a' is empty (the same: 'b')"]
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for text, kind, name in items:
        kinds.setdefault(kind, []).append((text, name))
    return [
        f"{first} (the same: {listed([name for _, name in rest], most=SAME)})" if rest else first
        for (first, _), *rest in kinds.values()
    ]


def listed(names: Sequence[str], between: str = ", ", most: int = NAMES) -> str:
    """Return names, the first of many.

    >>> listed(["anna", "bert"]), listed(["anna", "bert", "carl"], most=2)
    ('anna, bert', 'anna, bert and 1 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def kind_of(text: str) -> str:
    """Return a sentence without the names and numbers in it, the same for sentences of a kind.

    >>> kind_of("column 'age' is missing a value (and in 3 more rows)") == kind_of("column 'bmi' is missing a value")
    True
    """
    return _NAMES_AND_NUMBERS.sub("…", _MORE_ROWS.sub("", text))


def name_in(text: str) -> str | None:
    """Return the first name in a sentence, with its quotes."""
    found = _QUOTED.search(text)
    return None if found is None else found.group()


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NAMES_AND_NUMBERS = re.compile(_QUOTED.pattern + r"|\d[\d.,]*|--ignore .*$")
_MORE_ROWS = re.compile(r" \(and in \d+ more rows\)")


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What one client has: rows for training and testing, labels, and the share of its fields that is missing.

    ``counts`` are the rows of each class; in a regression ``mean`` and ``std`` are those of the target.
    """

    client: str
    train: int
    test: int
    counts: tuple[int, ...] = ()
    mean: float | None = None
    std: float | None = None
    missing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """The report on a user's data: all problems, the facts, and what is suspicious.

    ``features`` counts columns and ``inputs`` the numbers that they become; ``counts`` are the examples of each class,
    empty in a regression. ``task`` is what the labels are taken for, and why. ``notes`` say how the data are read, and
    ``warnings`` what is probably not meant; neither is an error. ``holdings`` are what each client has.
    """

    problems: tuple[Problem, ...]
    clients: int = 0
    rows: int = 0
    features: int = 0
    inputs: int = 0
    task: str = ""
    counts: Counts = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    holdings: tuple[Holding, ...] = ()

    def in_python(self) -> Check:
        """Return the report with arguments in the place of flags."""
        problems = tuple(replace(each, remedy=in_python(each.remedy)) for each in self.problems)
        return replace(self, problems=problems, warnings=tuple(map(in_python, self.warnings)))

    @property
    def good(self) -> bool:
        """Whether the data can be used as they are."""
        return not self.problems

    @property
    def majority(self) -> float | None:
        """The share of the most frequent class, which is the accuracy of always predicting it."""
        total = sum(count for _, count in self.counts)
        return max(count for _, count in self.counts) / total if total else None

    @property
    def rarest(self) -> tuple[str, int] | None:
        """The class with the fewest examples, and their number."""
        return min(self.counts, key=lambda pair: pair[1], default=None)

    def lines(self) -> list[str]:
        """Return the report, line by line: the facts and the findings."""
        return [*self.facts(), *self.findings()]

    def facts(self) -> list[str]:
        """Return how much there is, what the labels are taken for, and how many examples each class has."""
        sizes = f"{self.clients} clients, {self.rows} rows, {self.features} features ({self.inputs} inputs)"
        shown = ", ".join(f"{name} {count}" for name, count in self.counts[:SHOWN])
        more = f", and {len(self.counts) - SHOWN} more" if len(self.counts) > SHOWN else ""
        classes = [f"classes: {shown}{more}; the largest has {self.majority:.1%}"] if self.counts else []
        return [*([sizes] if self.clients else []), *([self.task] if self.task else []), *classes]

    def findings(self) -> list[str]:
        """Return notes, warnings and problems, one line for each kind, and last how many there are."""
        notes = alike([(f"note: {note}", kind_of(note), name_in(note) or "") for note in self.notes])
        warnings = [f"warning: {warning}" for warning in self.warnings]
        several = len({each.file for each in self.problems}) > 1
        problems = alike([(f"problem: {each}", _kind(each), _name(each, several)) for each in self.problems])
        beside = f"; {len(warnings)} warning{'s' * (len(warnings) > 1)}" if warnings else ""
        end = f"{len(self.problems)} problem{'s' * (len(self.problems) > 1)} found" if problems else "no problem found"
        return [*notes, *warnings, *problems, end + beside]


def _kind(problem: Problem) -> str:
    return f"{kind_of(problem.what)}; {kind_of(problem.remedy)}"


def _name(problem: Problem, several: bool) -> str:
    """Return what tells a problem from others of its kind: a name in it, and the file where there are several."""
    name, file = name_in(problem.what), Path(problem.file).name
    return file if name is None else f"{name} in {file}" if several else name


def class_notes(counts: Sequence[tuple[str, int]]) -> list[str]:
    """Return notes on classes that are rare, or that nearly all examples have.

    >>> class_notes([("ill", 4), ("well", 96)])
    ["96% of the examples are of class 'well'; judge by --metric auroc", "class 'ill' has 4 examples"]
    """
    total = sum(count for _, count in counts)
    notes = [
        f"{count / total:.0%} of the examples are of class {name!r}; judge by --metric auroc"
        for name, count in counts
        if count > MAJORITY * total
    ]
    rare = [(name, count) for name, count in counts if 0 < count < RARE]
    if rare:
        (name, count), others = rare[0], len(rare) - 1
        more = f", and {others} more classes have fewer than {RARE}" if others else ""
        notes.append(f"class {name!r} has {count} example{'s' * (count > 1)}{more}")
    return notes
