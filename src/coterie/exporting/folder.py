"""The exported folder: a model with everything that is needed to predict with it elsewhere.

::

    model.onnx | model.pt2 | model.safetensors + model.json
    schema.json     how a row of a table becomes the input, and what the output is
    metrics.json    how good the model is, for each client that it serves
    README.md       the model card
    predict.py      predicts from a .csv file, with table.py, which reads it

The interface: make an ``Export`` from a network in evaluation mode (``experiments/networks.network_of`` makes one from
served rows of a stack), its ``Model``, the schema of the tables and a ``Card``. ``write_files`` writes it into an empty
folder that the caller has made and will move to its place; ``write_folder`` does that, too, so that the folder appears
whole or not at all. ``read_network`` returns the network of a folder with safetensors. No run is needed for any of it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from coterie.data import Schema
from coterie.errors import DataError, ModelError, UnknownName, UsageError
from coterie.exporting import table
from coterie.exporting.card import Card, card_text
from coterie.exporting.formats import (
    INPUT,
    as_json,
    onnx_file,
    rebuilding,
    rebuilt,
    torch_file,
    weights_file,
)
from coterie.exporting.outputs import Outputs, outputs_of
from coterie.files import write_atomically
from coterie.models.combined import additive
from coterie.models.model import Model
from coterie.models.zoo import build_model
from coterie.outside import is_outside

ONNX, TORCH, SAFETENSORS = "onnx", "torch", "safetensors"
FORMATS = (ONNX, TORCH, SAFETENSORS)
"""The formats of an exported model."""

GRAPH, WEIGHTS, NETWORK, SCHEMA, METRICS, CARD, SCRIPT, TABLE = (
    "model.onnx",
    "model.safetensors",
    "model.json",
    "schema.json",
    "metrics.json",
    "README.md",
    "predict.py",
    "table.py",
)

ABOUT = (
    "Inputs are the features in this order. A number becomes (value - mean) / std. A category becomes one input for "
    "each of its values, 1 for the value of the row and 0 for the others; a hashed one, of many values, an input for "
    "each of some buckets. A date becomes its standardised day since 2000, and sine and cosine of its place in the "
    "year, the week and, with hours, the day. An indicator adds an input that is 1 where the value is missing. "
    "table.py does all this; output says what the answers of the model are."
)

SCRIPTS = {
    ONNX: '''"""Predict from a file: python predict.py FILE.csv > predictions.csv (needs numpy and onnxruntime)."""

import onnxruntime
from table import FOLDER, read, write

model = onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])
(answers,) = model.run(None, {"x": read()})
write(answers)
''',
    TORCH: '''"""Predict from a file: python predict.py FILE.csv > predictions.csv (needs numpy and torch)."""

import torch
from table import FOLDER, read, write

model = torch.export.load(FOLDER / "model.pt2").module()
write(model(torch.from_numpy(read())).detach().numpy())
''',
    SAFETENSORS: '''"""Predict from a file: python predict.py FILE.csv > predictions.csv (needs coterie)."""

import torch
from table import FOLDER, read, write

from coterie.exporting.folder import read_network

with torch.no_grad():
    write(read_network(FOLDER)(torch.from_numpy(read())).numpy())
''',
}
"""The script of each format."""

USES = {
    ONNX: "numpy and onnxruntime are all that is needed: `pip install numpy onnxruntime`.",
    TORCH: (
        "numpy and torch are needed, and not the code of the network: `torch.export.load` reads `model.pt2`. It "
        "unpickles parts of the file: load only a file that you trust, or export as safetensors."
    ),
    SAFETENSORS: (
        "`model.safetensors` holds the weights by their names and runs no code when it is read; `model.json` says how "
        "the network is built. `coterie.exporting.folder.read_network` does it."
    ),
}
"""What is needed to use each format."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """A network and what is known of it: all that an exported folder is made from.

    network      in evaluation mode; its outputs are those of ``model``, logits or standardised targets
    schema       how rows of tables become arrays; None where the examples are arrays
    class_names  the classes, where there is no schema and they have names
    """

    network: nn.Module
    model: Model
    card: Card
    schema: Schema | None = None
    class_names: Sequence[str] = field(default=())

    @cached_property
    def outputs(self) -> Outputs:
        """What the outputs mean."""
        return outputs_of(self.model.target, self.schema, self.class_names)

    def schema_table(self) -> dict[str, Any]:
        """Return the content of ``schema.json``: a run's schema, which coterie reads again, and input and output."""
        kind = "float32" if self.model.vocabulary is None else "int64"
        known = {} if self.schema is None else {"about": ABOUT, **self.schema.as_table()}
        return {
            **known,
            "input": {"name": INPUT, "type": kind, "shape": list(self.model.shape)},
            "output": {**self.outputs.as_table(), "columns": table.header(self.outputs.as_table())},
        }


def check_format(name: str) -> None:
    """Refuse a format that is none."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)


def files_of(export: Export, kind: str = ONNX, like: bytes | None = None) -> dict[str, bytes]:
    """Return the files of an exported folder, by name; ``like`` is the ONNX file of another network of the kind."""
    check_format(kind)
    return {
        SCHEMA: as_json(_checked(export.schema_table())),
        METRICS: as_json(export.card.metrics()),
        CARD: card_text(export.card, export.model, export.schema, export.outputs, _use(export, kind)).encode(),
        SCRIPT: SCRIPTS[kind].encode(),
        TABLE: Path(table.__file__).read_bytes(),
        **_model_files(export, kind, like),
    }


def write_files(folder: Path, export: Export, kind: str = ONNX, like: bytes | None = None) -> bytes | None:
    """Write the files of an exported folder into an empty folder, and return its ONNX file, if it has one."""
    files = files_of(export, kind, like)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return files.get(GRAPH)


def write_folder(
    folder: Path, exports: Iterable[tuple[str, Export]], kind: str = ONNX, beside: Mapping[str, bytes] | None = None
) -> Path:
    """Write a folder that appears whole or not at all; one that exists is refused.

    ``exports`` are the folders inside it with their names; an empty name is the folder itself. ``beside`` are files.
    """
    check_format(kind)
    if folder.exists():
        raise UsageError(f"{folder} exists already; remove it, or name another with -o")
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
    created = [each for each in making.parents if not each.exists()]
    try:
        making.mkdir(parents=True)
        graph = None
        for name, export in exports:
            (making / name).mkdir(exist_ok=True)
            graph = write_files(making / name, export, kind, graph)
        for name, content in (beside or {}).items():
            write_atomically(making / name, content)
        making.rename(folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        for each in created:
            with suppress(OSError):
                each.rmdir()
        raise
    return folder


def read_network(folder: str | Path, model: Model | None = None, answers: bool = True) -> nn.Module:
    """Return the network of a folder that was exported as safetensors; it answers as the others do.

    ``model``: the network that was trained, where it is not of the catalogue: a folder names no code that is run.
    Without ``answers`` its outputs are logits or standardised targets.
    """
    from coterie.exporting.outputs import answering

    path = Path(folder)
    try:
        description, weights = json.loads((path / NETWORK).read_text(encoding="utf-8")), (path / WEIGHTS).read_bytes()
        network = rebuilt(description, weights, model or _named(description))
        own = description["answers"]
        meaning = Outputs(kind=own["kind"], names=(), means=tuple(own["means"]), stds=tuple(own["stds"]))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); export with --format safetensors") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path / NETWORK} is damaged ({type(error).__name__}: {error}); export it again") from None
    return answering(network, meaning) if answers else network


def _named(description: dict[str, Any]) -> Model:
    """Return the network of the catalogue that a description names."""
    text = str(description["network"])
    if is_outside(text):
        raise ModelError(f"the network {text!r} is not of coterie's catalogue; give it as model=")
    kind = (description[name] for name in ("classes", "columns", "vocabulary"))
    model = build_model(text, tuple(description["shape"]), *kind)
    return additive(model) if description["cluster_part"] else model


def _model_files(export: Export, kind: str, like: bytes | None) -> dict[str, bytes]:
    if kind == ONNX:
        return {GRAPH: onnx_file(export.network, export.model, export.outputs, like)}
    if kind == TORCH:
        return {"model.pt2": torch_file(export.network, export.model, export.outputs)}
    description = rebuilding(export.network, export.model, export.outputs)
    return {WEIGHTS: weights_file(export.network), NETWORK: as_json(description)}


def _use(export: Export, kind: str) -> str:
    given = "FILE.csv" if export.schema is not None else "FILE.npy"
    columns = ", ".join(f"`{name}`" for name in export.schema_table()["output"]["columns"][:6])
    more = ", ..." if len(export.schema_table()["output"]["columns"]) > 6 else ""
    return f"`python predict.py {given} > predictions.csv` writes the columns {columns}{more}. {USES[kind]}"


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema; refuse one with a kind of column that ``table`` does not read."""
    for feature in schema.get("features", ()):
        if feature["kind"] not in table.ENCODERS:
            raise UsageError(
                f"column {feature['name']!r} is of the kind {feature['kind']!r}, which is not exported yet"
            )
    return schema
