"""Datasets given by Python: torch's, Hugging Face's, and those of Flower's partitioners, known by what they can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from coterie.arguments import checked
from coterie.data.federated import Federated
from coterie.data.given.arrays import PARTS, Pair, as_array, checked_pair, make_federated, read_clients
from coterie.data.tables.reading import Reading
from coterie.errors import DataError
from coterie.typing import Array

X_KEYS = ("x", "features", "image", "img")
LABEL_KEYS = ("y", "label", "labels", "target")
"""The keys that are looked for in rows that are mappings, in this order."""


@checked
def from_datasets(
    datasets: Any,
    *,
    x: str | None = None,
    label: str | None = None,
    names: Sequence[str] | None = None,
    task: str | None = None,
    test: float = 0.2,
    validation: float = 0.0,
    seed: int = 1,
    groups: Mapping[Any, Any] | None = None,
) -> Federated:
    """Return the clients of a mapping from names to datasets, or to mappings of datasets train, test and validation.

    A dataset has a length and rows: torch's map-style datasets, Hugging Face's, lists. A row is ``(x, y)``, or a
    mapping with the keys ``x`` and ``label`` (by default x, features, image or img, and y, label, labels or target).
    An example is an array, a tensor, a number, or an image of PIL, which becomes ``(channels, height, width)`` bytes.
    A partitioner of flwr-datasets is taken too: its clients are "0", "1", ..., or ``names``. Everything else is as in
    ``from_arrays``.

    >>> rows = [{"image": [[0.0, 1.0], [1.0, 0.0]], "label": i % 2} for i in range(10)]
    >>> from_datasets({"bern": rows, "chur": rows})
    Federated(datasets, natural: 2 clients, 16 train and 4 test examples of (2, 2), 2 classes)
    """
    reading = Reading(task=task, test=test, validation=validation, seed=seed)
    named = _named(datasets, names)
    clients = read_clients(named, "datasets", partial(_read_dataset, x_key=x, label_key=label))
    return make_federated("datasets", clients, reading, groups, _label_names(named, label))


def _named(datasets: Any, names: Sequence[str] | None) -> Any:
    """Return a mapping from names to datasets; that of a partitioner is made here."""
    if all(hasattr(datasets, name) for name in ("load_partition", "num_partitions")):
        count = int(datasets.num_partitions)
        own = list(map(str, range(count) if names is None else names))
        if len(own) != count:
            raise DataError(f"names has {len(own)} names for {count} partitions; give one for each")
        return {name: datasets.load_partition(i) for i, name in enumerate(own)}
    if names is not None:
        raise DataError("names are for a partitioner, and a mapping has names of its own; leave names out")
    if isinstance(datasets, Mapping) and datasets and set(datasets) <= set(PARTS):
        keys = ", ".join(map(str, datasets))
        raise DataError(f"the datasets are named {keys}, which are parts and no clients; give such parts per client")
    return datasets


def _read_dataset(dataset: Any, where: str, x_key: str | None, label_key: str | None) -> Pair:
    """Return all examples and labels of a dataset."""
    if isinstance(dataset, tuple):
        raise DataError(f"{where} has a tuple, not a dataset; arrays go through ct.from_arrays")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        kind = type(dataset).__name__
        raise DataError(f"{where} has a {kind}, without length or rows by number; give list(islice(it, n)) of it")
    if not len(dataset):
        raise DataError(f"{where} has an empty dataset; add rows, or leave it out")
    rows = (_read_row(dataset, i, where, x_key, label_key) for i in range(len(dataset)))
    examples, labels = zip(*rows, strict=True)
    for row, example in enumerate(examples):
        if example.shape != examples[0].shape:
            what = f"{where} has an example of shape {example.shape} in row {row} and of {examples[0].shape} in row 0"
            raise DataError(f"{what}; make all of one size")
    return checked_pair(np.stack(examples), as_array(labels, f"y of {where}"), where)


def _read_row(dataset: Any, i: int, where: str, x_key: str | None, label_key: str | None) -> tuple[Array, Any]:
    try:
        row = dataset[i]
    except NotImplementedError:
        kind = type(dataset).__name__
        raise DataError(f"{where} has a {kind} that gives no row by number; give list(islice(it, n)) of it") from None
    place = f"{where}, row {i},"
    if isinstance(row, Mapping):
        given = row[_key(row, x_key, X_KEYS, "x", place)], row[_key(row, label_key, LABEL_KEYS, "label", place)]
    elif isinstance(row, (tuple, list)) and len(row) == 2:
        given = row[0], row[1]
    else:
        raise DataError(f"{place} is a {type(row).__name__}; a row must be (x, y) or a mapping with keys for both")
    return _example(given[0], place), _label(given[1], place)


def _key(row: Mapping[str, Any], asked: str | None, usual: Sequence[str], option: str, place: str) -> str:
    """Return the key of the examples or of the labels."""
    for key in usual if asked is None else (asked,):
        if key in row:
            return key
    wanted = " or ".join(usual) if asked is None else asked
    raise DataError(f"{place} has no key {wanted} but {', '.join(map(str, row))}; name one of them with {option}=")


def _example(value: Any, place: str) -> Array:
    """Return one example; an image of PIL becomes (channels, height, width), and a number (1,)."""
    if hasattr(value, "getbands"):
        modes = {"1": "L", "P": "RGB"}  # black and white, and colours by number
        pixels = np.asarray(value.convert(modes[value.mode]) if value.mode in modes else value)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    example = as_array(value, f"x of {place}")
    return example if example.ndim else example[None]


def _label(value: Any, place: str) -> Any:
    label = as_array(value, f"y of {place}")
    if label.ndim == 1 and label.size > 1:
        return label.tolist()  # several labels or targets
    if label.size != 1:
        raise DataError(f"{place} has a label of shape {label.shape}; a label must be one number or word, or a row")
    return label.item()


def _label_names(named: Mapping[Any, Any], key: str | None) -> tuple[str, ...]:
    """Return the names of the labels 0, 1, ... that Hugging Face's datasets declare, if all declare the same."""
    given = [own.values() if isinstance(own, Mapping) else (own,) for own in named.values()]
    declared = {_declared(dataset, key) for datasets in given for dataset in datasets}
    return declared.pop() if len(declared) == 1 else ()


def _declared(dataset: Any, key: str | None) -> tuple[str, ...]:
    features = getattr(dataset, "features", None)
    kinds = features if isinstance(features, Mapping) else {}
    found = [kinds[each] for each in ((key,) if key else LABEL_KEYS) if each in kinds]
    return tuple(getattr(found[0], "names", None) or ()) if found else ()
