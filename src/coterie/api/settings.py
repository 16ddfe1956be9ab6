"""From Python values to the settings of a run, so that Python and the command line mean the same by the same words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from coterie import algorithms
from coterie.data import Federated, Schema
from coterie.data.tables.frames import as_frame
from coterie.errors import DataError, UnknownName, UsageError
from coterie.experiments.settings import OWN, Settings
from coterie.experiments.table_defaults import with_table_defaults
from coterie.models.given import Given, as_model
from coterie.models.model import Model
from coterie.protocol.task import Fit
from coterie.server.contract import Algorithm
from coterie.typing import Array

OF_DATA = ("data", "classes", "partition", "clients", "validation", *OWN)
"""Settings that the clients' data have already decided."""

OF_ALGORITHM = ("clusters", "choose")
OF_TRAINING = ("steps", "epochs", "batch", "lr", "momentum", "optimizer", "weight_decay", "lr_decay")
"""Settings that an algorithm has which is a value, and not a text."""

CLUSTERS = 4
"""The number of clusters where neither the algorithm nor an option says one, as for users' files."""


def python_settings(
    algorithm: Algorithm | str, clients: Any, model: Given, options: Mapping[str, Any]
) -> tuple[Algorithm, Model, Settings]:
    """Return the algorithm, the network and the settings of a run that Python describes.

    On tables it is trained as the command line trains it there, except for a value that has a ``fit`` of its own.
    """
    options = {name: value for name, value in options.items() if name != "rounds" or value is not None}
    if not isinstance(clients, Federated):
        made = "ct.load(...).partition(...), ct.from_frame, ct.from_arrays or ct.from_datasets make them"
        raise UsageError(f"clients is a {type(clients).__name__}; it must be a coterie.Federated: {made}")
    check_options(algorithm, options)
    if clients.schema is not None:
        algorithm, model, options = _as_tables(algorithm, model, options)
    network = as_model(model, clients.shape, clients.classes, clients.columns, clients.vocabulary)
    words = {"data": clients.data, "partition": clients.partition, **(clients.words or {})}
    known = {
        **words,
        "clients": len(clients),
        "model": network.text,
        **options,
        "metric": _metric_text(options),
        "track": _track_text(options),
    }
    if isinstance(algorithm, Algorithm):
        settings = Settings(algorithm.name, **known, **_local_training(algorithm.fit))
        return algorithm, network, replace(settings, lr=algorithm.fit.lr or network.default_lr)
    settings = Settings(algorithm, **known)
    clusters = settings.clusters or (CLUSTERS if _has_number(algorithm) else None)
    built = algorithms.build_algorithm(algorithm, clusters, settings.fit(), settings.choose)
    return built, network, replace(settings, clusters=clusters, lr=settings.lr or network.default_lr)


def check_options(algorithm: Algorithm | str, options: Mapping[str, Any]) -> None:
    """Refuse an option that is none, that the data have decided, or that an algorithm has which is a value."""
    every = [each.name for each in fields(Settings) if each.name not in ("algorithm", "model", *OF_DATA)]
    if not isinstance(algorithm, Algorithm | str):
        raise UsageError(f"algorithm is a {type(algorithm).__name__}; give ct.wecfl(clusters=4) or 'wecfl(clusters=4)'")
    for name in options:
        if name in OF_DATA:
            raise UsageError(f"{name} is given, but the clients' data have decided it; set it where they are made")
        if name not in every:
            raise UnknownName("option", name, every)
        if isinstance(algorithm, Algorithm) and name in (*OF_ALGORITHM, *OF_TRAINING):
            fit = "its fit, " if name in OF_TRAINING else ""
            raise UsageError(
                f"{name} is given, but the algorithm is a value and has it already; set it in {fit}"
                f"ct.wecfl(clusters=4, fit=ct.Fit(lr=0.05)), or give the algorithm as text"
            )


def _as_tables(
    algorithm: Algorithm | str, model: Given, options: Mapping[str, Any]
) -> tuple[Algorithm | str, Given, dict[str, Any]]:
    """Return what is trained on tables: with their defaults where nothing else is given.

    A value has its local training within it: it is made again with that of tables, unless it was given a ``fit``.
    """
    given = with_table_defaults({**options, "model": model})
    model = given.pop("model", None)
    if isinstance(algorithm, str):
        return algorithm, model, given
    training = {name: given.pop(name) for name in OF_TRAINING if name in given}
    return (algorithm if algorithm.refitted is None else algorithm.refitted(Fit(**training))), model, given


def _metric_text(options: Mapping[str, Any]) -> Any:
    """Return the metric as it is given, or by its name where it is a function of a module, a script or a notebook."""
    given = options.get("metric")
    if not callable(given):
        return given
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", "<object>")
    if module is None or "<" in name or "." in name:
        raise UsageError(f"metric is {name}, which has no name in a module; define it with def at the top of one")
    return f"{module}:{name}"


def _track_text(options: Mapping[str, Any]) -> Any:
    """Return the trackers as they are given, a text; those of a list as one text."""
    given = options.get("track")
    return ",".join(map(str, given)) if isinstance(given, list | tuple) else given


def _local_training(fit: Fit) -> dict[str, Any]:
    return {name: getattr(fit, name) for name in OF_TRAINING if name != "lr"}


def _has_number(algorithm: str) -> bool:
    return algorithms.has_number(algorithm)


def given_data(frame: Any, schema: Schema | None) -> Array:
    """Return the rows of a data frame as inputs, by the schema of the run's tables."""
    if schema is None:
        raise DataError(
            f"x is a {type(frame).__name__}, but the run was not trained on tables; give an array of examples"
        )
    found = as_frame(frame)
    return schema.features_from(
        found.select([name for name in schema.columns(labelled=False) if name in found.columns])
    )


def seeds_of(seeds: int | Iterable[int] | str) -> list[int]:
    """Return the seeds of a comparison: a number of them, a list, or a text such as ``1..5``.

    >>> seeds_of(3), seeds_of("2,4"), seeds_of([7])
    ([1, 2, 3], [2, 4], [7])
    """
    from coterie.experiments.sweep import parse_seeds

    if isinstance(seeds, str):
        return parse_seeds(seeds)
    return parse_seeds(",".join(map(str, seeds)) if isinstance(seeds, Iterable) else f"1..{seeds}")
