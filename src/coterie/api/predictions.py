"""Predictions for a file by the models of a finished run: for one of its clients, for many, or for a newcomer."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from coterie.data import Schema
from coterie.data.tables.arrays import read_arrays
from coterie.data.tables.cells import Block
from coterie.data.tables.columns import absent
from coterie.data.tables.files import Table, check_file, open_table
from coterie.data.tables.problems import Problem, Problems, listed
from coterie.data.tables.reading import Reading
from coterie.data.tables.rows import read_constants
from coterie.errors import DataError, UsageError, did_you_mean
from coterie.experiments.networks import mean_network
from coterie.experiments.served_run import ServedRun
from coterie.exporting import table as tables
from coterie.exporting.outputs import Outputs, answering, outputs_of
from coterie.typing import Array

if TYPE_CHECKING:
    import polars as pl

BATCH = 4096
"""Examples that one forward pass takes."""


class BadRows(DataError):
    """Rows for which nothing can be predicted, of every kind one problem."""

    def __init__(self, file: Path, problems: Sequence[Problem]) -> None:
        self.problems = problems
        super().__init__(f"{file} cannot be used as it is, and nothing was predicted; mend what is named above")


@dataclass(frozen=True)
class Predictions:
    """A table of predictions, in the order of the file's rows, and sentences on how they were made."""

    header: list[str]
    rows: list[list[str]]
    said: tuple[str, ...] = ()

    def as_csv(self) -> bytes:
        """Return the content of a .csv file."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return text.getvalue().encode()


@dataclass(frozen=True)
class Examples:
    """The examples of a file: inputs, labels if all rows have one, the words of columns that are kept, all columns."""

    x: Array
    y: Array | None
    words: Mapping[str, list[str]]
    attributes: Mapping[str, str]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def predict_file(
    run: ServedRun, file: Path, *, client: str | None = None, keep: Sequence[str] = (), schema: Schema | None = None
) -> Predictions:
    """Predict every row of a file: by the model of ``client``, of the client that its column names, or of a newcomer.

    ``keep`` names columns that are written beside the predictions; ``schema`` is for a run without one.
    """
    if client is not None:
        run.position(client)
    by = schema or run.schema
    outputs = outputs_of(run.trained.model.target, by, run.class_names)
    column = run.settings.client if client is None else None
    given = _read(run, file, by, (*keep, column) if column else tuple(keep))
    column = column if column in given.words else None
    said: tuple[str, ...] = ()
    if column is not None:
        answers = _by_client(run, given.x, given.words[column], outputs)
    else:
        network = None if client is None else run.network(run.position(client))
        if network is None:
            network, said = _newcomer(run, file, given)
        answers = answers_of(network, outputs, given.x)
    beside = [*keep, *([column] if column and column not in keep else [])]
    rows = tables.rows(answers, outputs.as_table())
    kept = zip(*(given.words[name] for name in beside), strict=True) if beside else ((),) * len(given.x)
    return Predictions(
        [*beside, *tables.header(outputs.as_table())],
        [[*words, *own] for words, own in zip(kept, rows, strict=True)],
        (*given.notes, *said),
    )


@torch.no_grad()
def answers_of(network: nn.Module, outputs: Outputs, x: Array) -> Array:
    """Return probabilities, or numbers in the units of the table, a row for each example."""
    whole = answering(network, outputs)
    found: Array = torch.cat([whole(part) for part in torch.split(torch.from_numpy(x), BATCH)]).numpy()
    return found


def _by_client(run: ServedRun, x: Array, names: Sequence[str], outputs: Outputs) -> Array:
    answers = np.zeros((len(x), run.trained.model.target.width), np.float32)
    owners = np.array(names)
    for name in dict.fromkeys(names):
        own = np.flatnonzero(owners == name)
        answers[own] = answers_of(run.network(run.position(name)), outputs, x[own])
    return answers


def _newcomer(run: ServedRun, file: Path, given: Examples) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the network of a client that took no part, and where it was placed."""
    trained, column = run.trained, run.settings.client
    if run.is_by_cluster and len(trained.state.stack) == 1:
        return mean_network(trained.model, trained.state, None), ("the run has one model, for everybody",)
    unnamed, near = f"{file} names no client of the run", ""
    if column is not None:
        unnamed, near = f"{file} has no column {column!r}, which names clients", did_you_mean(column, given.columns)
    if given.y is None and not _places_unlabelled(run):
        raise UsageError(
            f"{unnamed}, and {run.settings.algorithm} places a newcomer by labels alone;{near} name a client with "
            "--client, add labels, or train with flux or pacfl(by=all), which need none"
        )
    placed = trained.assign(given.x, given.y, given.attributes)
    network = trained.network(given.x, given.y, given.attributes)
    by = "rows without labels" if given.y is None else "labelled rows"
    said = f"{unnamed};{near} placed as a newcomer in cluster {placed.cluster} by {len(given.x)} {by}"
    return network, (said, *([f"warning: {placed.warning}"] if placed.warning else []))


def _places_unlabelled(run: ServedRun) -> bool:
    """Return whether a newcomer without labels can be placed, and served: neither chosen for, nor fine-tuned."""
    algorithm = run.trained.algorithm
    return algorithm.place_unlabelled is not None and not (algorithm.serve.fit or algorithm.serve.choose)


def _read(run: ServedRun, file: Path, schema: Schema | None, columns: tuple[str, ...]) -> Examples:
    """Read a file: an .npz file, or a table by the schema with some columns beside the inputs."""
    check_file(file)
    if file.suffix.lower() == ".npz":
        column = run.settings.client
        if any(name != column for name in columns):
            raise UsageError(f"{file} is of arrays, which have no columns to keep; leave --keep out")
        x, y = read_arrays(file, tokens=run.trained.model.vocabulary is not None)
        if tuple(x.shape[1:]) != tuple(run.trained.model.shape):
            raise DataError(f"{file} has x of shape {x.shape}; the run's model needs (n, {run.trained.model.shape})")
        return Examples(x, y, {}, {})
    if schema is None:
        raise DataError(
            f"{file} is a table, and the run has no schema.json; name one with --schema, or give an .npz file"
        )
    reader = _TableReader(run, file, schema, columns)
    return reader.read()


class _TableReader:
    """A table being read for predictions; whatever cannot be used is collected."""

    def __init__(self, run: ServedRun, file: Path, schema: Schema, columns: tuple[str, ...]) -> None:
        self.run, self.file, self.schema, self.problems = run, file, schema, Problems()
        self.table: Table = open_table(file)
        self.client = run.settings.client
        self.beside = [name for name in dict.fromkeys(columns) if name in self.table.columns or name != self.client]

    def read(self) -> Examples:
        """Return the examples; refuse the table with all its problems at once."""
        needed = self.schema.columns(labelled=False)
        for name in dict.fromkeys((*needed, *self.beside)):
            if name not in self.table.columns:
                remedy = "the model needs it; add it" if name in needed else "correct --keep"
                self.problems.add(Problem(str(self.file), None, *absent(name, self.table.columns, remedy)))
        self._refuse()
        labelled = self.client not in self.beside and self._is_labelled()
        wanted = list(dict.fromkeys((*self.schema.columns(labelled), *self.beside)))
        parts = [self._block(block, labelled) for block in self.table.blocks(wanted)]
        self._refuse()
        if not parts:
            raise DataError(f"{self.file} holds no rows; add some")
        x, y = (np.concatenate([part[i] for part in parts]) for i in range(2))
        words = {name: [word for part in parts for word in part[2][name]] for name in self.beside}
        return Examples(x, y if labelled else None, words, self._attributes(), self.table.columns, self._notes())

    def _block(self, block: Block, labelled: bool) -> tuple[Array, Array, dict[str, list[str]]]:
        x, y = self.schema.encode(str(self.file), block, self.problems, labelled)
        words = {name: _words(block.frame[name]) for name in self.beside}
        if self.client in words:
            self._check_clients(block, words[self.client])
        return x, y, words

    def _check_clients(self, block: Block, names: list[str]) -> None:
        unknown = [row for row, name in enumerate(names) if name not in self.run.names]
        if unknown:
            what = f"client {names[unknown[0]]!r} took no part in the run"
            remedy = "leave its rows out, or predict a file of its rows alone, without this column"
            self.problems.add_rows(
                str(self.file),
                "client",
                len(unknown),
                lambda: Problem(str(self.file), block.number_of(unknown[0]), what, remedy),
            )

    def _is_labelled(self) -> bool:
        """Return whether every row has its label, so that a newcomer can be placed by them."""
        labels = self.schema.labels
        if not all(name in self.table.columns for name in labels):
            return False
        return not any(block.cells(name).missing.any() for block in self.table.blocks(labels) for name in labels)

    def _attributes(self) -> dict[str, str]:
        named = Reading.from_options({"attribute": self.run.settings.attribute}).attribute
        return {} if self.client in self.beside else read_constants(self.file, named)

    def _notes(self) -> tuple[str, ...]:
        known = (*self.schema.columns(), *self.schema.ignored, *self.beside)
        others = [name for name in self.table.columns if name not in known]
        unseen = tuple(f"note: {note}" for note in self.problems.notes())
        if not others:
            return unseen
        what = "columns that the model does not know are passed over"
        return (f"{what}: {listed(others)} (--keep writes them too)", *unseen)

    def _refuse(self) -> None:
        if self.problems:
            raise BadRows(self.file, [_remedied(each) for each in self.problems.all()])


def _remedied(problem: Problem) -> Problem:
    """Return a problem with a remedy for somebody who predicts: options of reading belong to the run."""
    of_run = problem.row is not None and "--" in problem.remedy
    return replace(problem, remedy="correct it, or leave the row out") if of_run else problem


def _words(column: pl.Series) -> list[str]:
    import polars as pl

    return column.cast(pl.String).str.strip_chars().fill_null("").to_list()
