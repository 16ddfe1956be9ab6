"""A site whose table has no schema yet: what it tells of its columns, and how it takes the schema that all agreed on.

Until then the site answers nothing else. What it tells is counts, sums and words that enough rows have; its policy says
how many (``least_count``), and whether it tells anything at all (``"columns"`` in ``reports``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.data import Federated, Schema, check_files, load_client
from coterie.data.tables.agreement import OwnTable
from coterie.data.tables.cells import COUNTS_AS_MISSING
from coterie.data.tables.problems import Problem
from coterie.data.tables.reading import Reading
from coterie.deploy.deployment import SCHEMA
from coterie.deploy.policy import Policy
from coterie.errors import DataError, FederationError
from coterie.wire.schema_messages import facts_table, read_kinds

_NAMED = re.compile(r"column '([^']*)'")
_FLAG = re.compile(
    r"--([a-z]+(?:-[a-z]+)*)(?: (?P<word>(?<=missing )\w+|(?<=task )\w+|(?<=ignore ).+$))?", re.MULTILINE
)
REFUSED = "error"
"""What ``missing`` says where a missing value is a problem."""

_OF_ALL = ("missing", "drop_missing_labels", "task", "label", "categorical")


@dataclass(frozen=True)
class UnreadTable:
    """The table of a site's folder, to be read by a schema that is not there yet; ``options`` are those of reading."""

    folder: Path
    file: Path
    name: str
    options: Mapping[str, Any]
    tell: Callable[[str], None]

    def check(self) -> None:
        """Refuse a table that cannot be read at all, or can fit no schema, before anybody is told that it is there."""
        own = self._own()
        assert own.features, "a table without features is refused when it is read"
        gaps = own.gaps() if own.reading.missing == REFUSED else {}
        labels = own.unlabelled()
        if gaps or labels:
            every = {repr(name): count for name, count in gaps.items()}
            every |= {f"the label {name!r}": count for name, count in labels.items()}
            named = ", ".join(f"{name} in {count} row{'s' * (count > 1)}" for name, count in every.items())
            what = f"{self.file} lacks values of {named} ({COUNTS_AS_MISSING})"
            ways = ["use --missing indicator or --missing mean"] if gaps else []
            ways += ["leave rows without a label out with --drop-missing-labels"] if labels else []
            raise DataError(f"{what}; fill them in, or {', and '.join(ways)}")
        for note in own.notes:
            self.tell(f"{note} ({COUNTS_AS_MISSING})")

    def columns(self, policy: Policy) -> dict[str, Any]:
        """Return what this site tells of its columns."""
        policy.check_columns()
        with self._in_private():
            table = self._own()
            return facts_table(table.facts(policy.least_count), table.reading)

    def sums(self, kinds: Any, policy: Policy) -> dict[str, Any]:
        """Return the sums of this site's columns, for the kinds that all sites agree on."""
        policy.check_columns()
        agreed = read_kinds(kinds)
        with self._in_private():
            table = self._own()
            if agreed.columns.keys() != set(table.features) or agreed.targets not in ((), table.reading.labels):
                raise FederationError("the sums of other columns are asked for than this site has told of; ask again")
            return table.sums(agreed, policy.least_count).table()

    def take(self, schema: Any) -> Federated:
        """Check the table against a schema; keep the schema and return the data if all rows fit.

        Every problem is a line on the site's console; the server is told which columns they are in, and no value.
        """
        with self._in_private():
            found = self._received(schema)
            problems = check_files(self.file, schema=found, **self.options).problems
        for problem in problems:
            self.tell(in_site_toml(f"does not fit the schema: {problem}"))
        if problems:
            raise FederationError(f"its table does not fit the schema: {misfits(problems)}; its console lists the rows")
        data = load_client(self.file, self.name, schema=found, **self.options)
        os.replace(self._new, self.folder / SCHEMA)
        self.tell(f"the sites have agreed on a schema, {self.folder / SCHEMA}; this site's table fits it")
        return data

    @contextmanager
    def _in_private(self) -> Iterator[None]:
        """Tell what is wrong with the table to the site's operator and not to the server: it may quote values."""
        try:
            yield
        except DataError as error:
            self.tell(in_site_toml(f"problem: {error}"))
            raise FederationError("its table cannot be read; its console says why") from None

    @property
    def _new(self) -> Path:
        return self.folder / f".{SCHEMA}.new"

    def _own(self) -> OwnTable:
        return OwnTable(self.file, self.name, Reading.from_options(self.options))

    def _received(self, table: Any) -> Schema:
        """Return the schema that was sent; refuse one of another label or other columns than this site has told of."""
        self._new.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        try:
            schema = Schema.load(self._new)
        except DataError:
            raise FederationError("the schema cannot be read; do the versions match?") from None
        own = self._own()
        if schema.missing != own.reading.missing:
            ours, theirs = (f"missing = {value!r}" for value in (own.reading.missing, schema.missing))
            remedy = f"set {theirs} in site.toml there, or agree again: delete {SCHEMA} at the server and at all sites"
            raise FederationError(f"the schema is one with {theirs}, and its site.toml has {ours}; {remedy}")
        labels = own.reading.labels if len(own.reading.labels) > 1 else ()
        wanted = (own.reading.label, set(own.features), labels)
        told = (schema.label, {each.name for each in schema.features})
        if (*told, tuple(each.name for each in schema.outputs)) != wanted:
            raise FederationError("the schema is of another label or other columns than this site has told of")
        return schema


def in_site_toml(text: str) -> str:
    """Return what is to be done about a table, with keys of ``site.toml`` in the place of flags.

    >>> print(in_site_toml("fill it in, or use --missing indicator or --missing mean"))
    fill it in, or use missing = "indicator" or missing = "mean" in site.toml, the same at all sites
    >>> print(in_site_toml("correct it, or --ignore shoe size"))
    correct it, or ignore = "shoe size" in site.toml
    >>> print(in_site_toml("leave such rows out with --drop-missing-labels"))
    leave such rows out with drop_missing_labels = true in site.toml, the same at all sites
    """

    def key(flag: re.Match[str]) -> str:
        name = flag[1].replace("-", "_")
        keys.append(name)
        if name == "drop_missing_labels":
            return f"{name} = true"
        return f'{name} = "{flag["word"]}"' if flag["word"] else name

    said = []
    for each in text.splitlines():
        keys: list[str] = []
        said.append(_FLAG.sub(key, each))
        if keys:
            said[-1] += " in site.toml" + ", the same at all sites" * any(name in _OF_ALL for name in keys)
    return "\n".join(said)


def misfits(problems: tuple[Problem, ...]) -> str:
    """Return which columns have problems, without any value of a table.

    >>> misfits((Problem("a.csv", 3, "column 'age' has 'x' among its numbers", ""), Problem("a.csv", 4, "no", "")))
    "column 'age', and 1 more problem"
    """
    named = [match[1] for each in problems if (match := _NAMED.search(each.what))]
    columns = ", ".join(f"column {name!r}" for name in dict.fromkeys(named))
    others = len(problems) - len(named)
    more = f"{others} more problem{'s' * (others > 1)}" if columns else f"{others} problem{'s' * (others > 1)}"
    return ", and ".join(filter(None, (columns, more if others else "")))
