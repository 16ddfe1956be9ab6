"""The models that a site has received: a folder for each version, one of which is current.

::

    models/VERSION/    the model, the schema of the tables it is for, and its score card
    models/current     a link to the version that is in use

A version appears whole or not at all, and the link changes in one step: after a power cut at any moment the old version
is current and complete, and the new one is complete or absent.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from coterie.errors import FederationError, UsageError
from coterie.files import write_atomically
from coterie.terminal import cell

MODELS, CURRENT, CARD = "models", "current", "card.json"
"""The folder of versions in a site's folder, the link to the one in use, and the score card in each."""

SET_ASIDE = "rolled-back"
"""A file in a version that the site went back from: the same version does not become current when it comes again."""

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOCK, _HIDDEN = ".lock", "."


class Version(NamedTuple):
    """A version that a site holds: its name, its card, and whether it is in use or was rolled back from."""

    name: str
    card: dict[str, Any]
    is_current: bool
    is_set_aside: bool


@dataclass(frozen=True)
class ModelStore:
    """The versions in a folder, of which the newest ``keep`` stay, and the current one in any case."""

    folder: Path
    keep: int = 5

    def add(self, version: str, write: Callable[[Path], object]) -> bool:
        """Add a version, whose files ``write`` makes in an empty folder, and make it current.

        A version that is there already is not written again. Return whether it is the current one now: not if the site
        went back from it.
        """
        check_version(version)
        self.folder.mkdir(mode=0o750, exist_ok=True)
        with self._alone():
            self._remove_remains()
            if not (self.folder / version).exists():
                making = self.folder / f"{_HIDDEN}{version}.making"
                making.mkdir(mode=0o750)
                write(making)
                _flush(making)
                making.rename(self.folder / version)
                _flush_folder(self.folder)
            if not (self.folder / version / SET_ASIDE).exists():
                self._point_to(version)
            self._remove_old()
        return self.current() == version

    def roll_back(self, version: str | None = None) -> str:
        """Make another version current, by default the one received before, and return its name."""
        if not self.folder.is_dir():
            raise UsageError(f"{self.folder} is not there: this site has received no model yet")
        with self._alone():
            known, before = [each.name for each in self.versions()], self.current()
            if version is None:
                older = known[: known.index(before)] if before in known else known
                if not older:
                    raise UsageError(f"{before or 'none'} is the oldest version here; there is none to go back to")
                version = older[-1]
            if version not in known:
                raise UsageError(f"there is no version {version!r}; this site has {', '.join(known) or 'none'}")
            if before in known[known.index(version) + 1 :]:
                write_atomically(self.folder / str(before) / SET_ASIDE, b"")
            (self.folder / version / SET_ASIDE).unlink(missing_ok=True)
            self._point_to(version)
        return version

    def current(self) -> str | None:
        """Return the name of the version in use; None if there is none."""
        with suppress(OSError):
            name = os.readlink(self.folder / CURRENT)
            if (self.folder / name).is_dir():
                return name
        return None

    def versions(self) -> list[Version]:
        """Return all versions in the order in which they were received."""
        current, found = self.current(), []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.is_dir() and not path.is_symlink() and not path.name.startswith(_HIDDEN):
                set_aside = (path / SET_ASIDE).exists()
                found.append(Version(path.name, _read_card(path), path.name == current, set_aside))
        return sorted(found, key=lambda each: (str(each.card.get("received", "")), each.name))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one program at a time change the folder: the agent, or a command of the site's operator."""
        with (self.folder / _LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _point_to(self, version: str) -> None:
        link = self.folder / f"{_HIDDEN}{CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(version)
        os.replace(link, self.folder / CURRENT)
        _flush_folder(self.folder)

    def _remove_old(self) -> None:
        """Remove the oldest versions; each is hidden first, so that half of one is never seen."""
        for version in self.versions()[: -self.keep]:
            if not version.is_current:
                hidden = self.folder / f"{_HIDDEN}{version.name}.old"
                (self.folder / version.name).rename(hidden)
                shutil.rmtree(hidden)

    def _remove_remains(self) -> None:
        """Remove what a program left that was killed while it added or removed a version."""
        for path in self.folder.iterdir():
            if path.name.startswith(_HIDDEN) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)


def check_version(name: str) -> None:
    """Refuse what cannot be the name of a version, since it becomes the name of a folder."""
    if _VERSION.fullmatch(name) is None or name == CURRENT:
        wanted = "1 to 100 letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        raise FederationError(f"the version is {name[:100]!r}; it must be {wanted}, and not {CURRENT!r}")


def _flush(folder: Path) -> None:
    """Have all files of a folder on disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            _flush_folder(path)
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _read_card(path: Path) -> dict[str, Any]:
    """Return the card of a version; an empty one if somebody has damaged it."""
    try:
        card = json.loads((path / CARD).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return card if isinstance(card, dict) else {}


VERSION_COLUMNS = ("version", "received", "cluster", "score", "guessing", "")
"""The columns of a table of versions."""


def versions_table(versions: list[Version]) -> Table:
    """Return a table of versions, the newest last."""
    table = Table()
    for title in VERSION_COLUMNS:
        table.add_column(title)
    for each in versions:
        table.add_row(*map(cell, version_cells(each)))
    return table


def version_cells(version: Version) -> tuple[str, ...]:
    """Return the cells of a version, in the order of ``VERSION_COLUMNS``."""
    card = version.card
    scores = card.get("scores") or {}
    use = "current" if version.is_current else "rolled back" if version.is_set_aside else ""
    when = str(card.get("received", "")).partition(".")[0].replace("T", " ")
    score = f"{card.get('measure', '')} {_number(scores.get('this model'))}"
    return version.name, when, _cluster(card), score, _number(scores.get("guessing")), use


def _cluster(card: dict[str, Any]) -> str:
    return "none" if card.get("cluster") is None else f"{card['cluster']} of {card.get('clusters', '?')}"


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else "?"
