"""Reports that a site gives only if it likes: the majority rate; and how well calibrated its model is."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from coterie.data import load
from coterie.deploy.audit import Audit
from coterie.deploy.order import Order
from coterie.deploy.policy import MAJORITY, REPORTS, Policy, load_policy
from coterie.deploy.server_run import _checked_description, agree_on_data
from coterie.deploy.site_answers import Site
from coterie.engine.metrics import calibration_error
from coterie.errors import FederationError
from coterie.experiments.summary import majority_rate

ORDER = Order({"algorithm": "fedavg"}, "out", "board", ("client-000", "client-001"), minimum=2, timeout=60.0)


@pytest.fixture(scope="module")
def data():
    return load("digits").partition("rotation(0,180)", clients=2, seed=1)


def described(data, tmp_path, reports):
    policy = Policy(reports=reports)
    sites = [Site(name, data.select([i]), policy, Audit(tmp_path / name)) for i, name in enumerate(data.names)]
    return {site.name: site.hello() for site in sites}


def test_the_majority_rate_is_known_where_every_site_tells_it(data, tmp_path):
    told = described(data, tmp_path, (*REPORTS, MAJORITY))
    known = agree_on_data(ORDER, told)
    by_hand = []
    for client in range(2):
        train, test = data.train.of(client)[1], data.test.of(client)[1]
        by_hand.append((test == np.bincount(train).argmax()).sum())
    assert known.majority_correct.tolist() == by_hand
    everyone = np.arange(2)
    assert majority_rate(known, "test", everyone) == pytest.approx(sum(by_hand) / sum(data.test.sizes))
    one = {**told, "client-001": replace(told["client-001"], majority=None)}
    assert agree_on_data(ORDER, one).majority_correct is None


def test_no_site_tells_it_unless_its_policy_says_so(data, tmp_path):
    (tmp_path / "policy.toml").write_text("")
    assert MAJORITY not in load_policy(tmp_path / "policy.toml").reports
    assert all(about.majority is None for about in described(data, tmp_path, REPORTS).values())


@pytest.mark.parametrize("majority", [-1, 10**9])
def test_an_impossible_majority_is_refused(data, tmp_path, majority):
    about = json.loads(json.dumps(asdict(described(data, tmp_path, (*REPORTS, MAJORITY))["client-000"])))
    assert _checked_description("client-000", about).majority is not None
    with pytest.raises(FederationError, match="majority examples of"):
        _checked_description("client-000", {**about, "majority": float(majority)})


@given(some.integers(0, 2**32 - 1))
def test_calibration_is_the_mean_gap_over_bins(seed):
    """Against a slow reference, bin by bin, with torch's softmax written out."""
    draw = np.random.default_rng(seed)
    outputs, y = draw.normal(0, 3, (40, 3)), draw.integers(0, 3, 40)
    likely = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    total = 0.0
    for low in range(10):
        inside = [i for i in range(40) if low / 10 <= likely[i].max() < (low + 1) / 10]
        if inside:
            right = np.mean([likely[i].argmax() == y[i] for i in inside])
            total += len(inside) / 40 * abs(right - np.mean([likely[i].max() for i in inside]))
    assert calibration_error(outputs, y) == pytest.approx(total, abs=1e-9)


def test_a_model_that_is_sure_and_wrong_is_as_badly_calibrated_as_can_be():
    sure = np.array([[1000.0, 0.0]] * 3)
    assert calibration_error(sure, np.array([1, 1, 1])) == 1
    assert calibration_error(sure, np.array([0, 0, 0])) == 0
