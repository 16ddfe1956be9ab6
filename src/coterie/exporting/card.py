"""The model card: what an exported model was trained on, for whom it is, how good it is, and where its limits are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from coterie.data import Schema
from coterie.exporting.outputs import CLASSES, LABELS, Outputs
from coterie.models.model import Model
from coterie.terminal import line

THIS, GUESS, ONE, LOCAL = "this model", "guessing", "one model", "local model"
"""What a card compares: the model, guessing the most frequent class or the mean, one model for all, a client's own."""

FEW = 30
"""With fewer test examples than this a score says little."""

MISSING = {
    "error": "A missing value is refused.",
    "mean": "A missing value takes the mean of the column.",
    "indicator": "A missing value takes the mean of the column, and is marked where the train data had such gaps.",
}
"""What becomes of a missing value, by the option of the run."""

SHOWN = 12
"""Clients, classes and columns that a card lists by name."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is known of a model beside the network itself; None, or nothing, where it is not known.

    title     whose model it is: ``client bern``, ``cluster 2``
    clients   the clients that it serves
    of        the number of clients of the run
    cluster   the cluster of these clients, if it is one
    made      how the model came about, as a sentence
    train     the train examples of these clients, and ``test`` their test examples
    measure   what the scores are: the metric that the user named, accuracy, or rmse in the units of the table
    smaller   whether less of it is better
    scores    the scores of THIS, GUESS, ONE and LOCAL on the test examples, means by their number
    scored    the number of clients that have a score; None if all have one
    why       why a client may have none
    by_client a row for each client, as in ``clients.csv``
    notes     of the run, on its data
    settings  the experiment file that makes the run again
    """

    title: str
    algorithm: str
    data: str
    rounds: int
    seed: int
    clients: Sequence[str] = ()
    of: int | None = None
    cluster: int | None = None
    made: str = ""
    train: int | None = None
    test: int | None = None
    measure: str = "accuracy"
    smaller: bool = False
    scores: Mapping[str, float | None] = field(default_factory=dict)
    scored: int | None = None
    why: str = ""
    by_client: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    settings: str = ""

    def metrics(self) -> dict[str, Any]:
        """Return the card as a table for JSON, without the texts."""
        facts = {
            name: value for name, value in asdict(self).items() if name not in ("settings", "notes", "made", "why")
        }
        unknown = [name for name in (THIS, GUESS, ONE, LOCAL) if self.scores.get(name) is None]
        return {**facts, "not_known": unknown, "coterie": version()}


def version() -> str:
    """Return the installed version of coterie."""
    return metadata.version("coterie")


def card_text(card: Card, model: Model, schema: Schema | None, outputs: Outputs, use: str) -> str:
    """Return a model card in Markdown; ``use`` says how the files of the folder are used."""
    sections = {
        f"Model of {line(card.title, 200)}": _what(card, model, schema, outputs),
        "How good it is": _how_good(card),
        "How to use it": [use],
        "What it needs": _inputs(model, schema),
        "Intended use and limits": _limits(card, schema, outputs),
        "How to make it again": _again(card),
    }
    marks = ("#", *("##",) * len(sections))
    parts = (
        f"{mark} {title}\n\n{_joined(lines)}" for mark, (title, lines) in zip(marks, sections.items(), strict=False)
    )
    return "\n".join(parts)


def _joined(paragraphs: Iterable[str]) -> str:
    return "\n".join(f"{each}\n" for each in paragraphs)


def _what(card: Card, model: Model, schema: Schema | None, outputs: Outputs) -> Iterator[str]:
    label = "" if schema is None else f" `{line(schema.label, 200)}`"
    kind = {CLASSES: f"the class{label}, one of", LABELS: "whether these hold:"}.get(outputs.kind, "the number")
    yield f"It predicts {kind} {_some(outputs.names)}{' in the unit of the table' if outputs.stds else ''}."
    whom = f"{len(card.clients)} of {card.of} clients" if card.of else f"{len(card.clients)} clients"
    yield (
        f"Trained with clustered federated learning: `{card.algorithm}`, network `{model.text}`, {card.rounds} rounds, "
        f"seed {card.seed}, on the data {card.data}. {card.made}".rstrip()
    )
    if card.clients:
        yield f"For {whom}: {_some(card.clients)}."
    if card.train is not None:
        yield f"These clients have {card.train:,} train examples, and {card.test:,} test examples that were set aside."


def _how_good(card: Card) -> Iterator[str]:
    rows = [f"| {name} | {_score(card.scores.get(name))} |" for name in (THIS, GUESS, ONE, LOCAL)]
    yield "\n".join([f"| on the test examples of its clients | {card.measure} |", "|---|---|", *rows])
    less = "less is better" if card.smaller else "more is better"
    yield (
        f"{card.measure[:1].upper()}{card.measure[1:]}, {less}; over clients, a mean by the number of test examples. "
        "Guessing is the most frequent class, or the mean, of a client's train examples. `metrics.json` has every "
        "client."
    )
    if card.scored is not None and card.scored < len(card.clients):
        why = f" ({line(card.why)})" if card.why else ""
        yield f"It is over {card.scored} of {len(card.clients)} clients; the others have none{why}."
    if card.test is not None and card.test < FEW:
        yield f"**{card.test} test examples are too few to judge the model by.**"


def _score(value: float | None) -> str:
    return "not known" if value is None else f"{value:.4g}"


def _inputs(model: Model, schema: Schema | None) -> Iterator[str]:
    if schema is None:
        kind = "float32 numbers" if model.vocabulary is None else f"int64 tokens below {model.vocabulary}"
        yield f"Arrays of {kind}, of shape (n, {', '.join(map(str, model.shape))}), scaled as the train examples were."
        return
    columns = [f"`{name}`" for name in schema.columns(labelled=False)]
    yield f"A table with the columns {_some(columns, 60)}; others are passed over."
    yield "`schema.json` says how each becomes numbers."
    yield MISSING[schema.missing]


def _limits(card: Card, schema: Schema | None, outputs: Outputs) -> Iterator[str]:
    yield (
        "For new rows of the clients above, measured as theirs were. For anybody else nothing is known: "
        "`coterie assign` finds the cluster of another client, and says if none fits."
    )
    if outputs.kind in (CLASSES, LABELS):
        yield "The probabilities were not calibrated; check them before a decision depends on their size."
    yield (
        "Weights can reveal something of the train data (see the threat model in coterie's documentation): treat this "
        "folder as you treat the data."
    )
    if schema is not None and any(getattr(feature, "values", ()) for feature in schema.features):
        yield "`schema.json` lists all values of the categories that the train data have."
    yield from (f"A note of the run: {line(note)}." for note in card.notes)


def _again(card: Card) -> Iterator[str]:
    yield f"coterie {version()}, with these settings as an experiment file (`coterie run FILE.toml`) and the same data:"
    yield f"```toml\n{card.settings.rstrip()}\n```"


def _some(names: Sequence[str], most: int = SHOWN) -> str:
    """Return the first names, and how many more there are.

    >>> _some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    shown = ", ".join(line(name, 200) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
