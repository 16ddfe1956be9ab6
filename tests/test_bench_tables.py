"""What measurements on real tables rest on: rows of patients, squeezed inputs, the loss of guessing, resuming."""

from __future__ import annotations

import json
import sys

import numpy as np
import polars as pl
import pytest

import coterie as ct
from benchmarks import tables
from benchmarks.sepsis import ONCE, by_patient


def hourly(patient: str, hours, rates, ill=0) -> pl.DataFrame:
    """Return the records of a patient whose only measurement is the heart rate."""
    once = dict.fromkeys(ONCE, 50.0) | {"HospAdmTime": -np.expm1(2.0)}
    frame = {"HR": rates, **once, "Unit1": 1.0, "Unit2": 0.0, "ICULOS": hours, "SepsisLabel": ill}
    named = {**frame, "hospital": "A", "patient": patient}
    return pl.DataFrame({name: each if isinstance(each, list) else [each] * len(hours) for name, each in named.items()})


def test_a_patient_is_described_by_the_first_six_hours_alone():
    rows = by_patient(hourly("one", [2.0, 5.0, 6.0, 7.0], [80.0, None, 95.0, 300.0], [0.0, 0.0, 0.0, 1.0])).to_dicts()
    assert len(rows) == 1
    found = {
        name: rows[0][name] for name in ("HR_last", "HR_mean", "HR_change", "HR_count", "begin", "sepsis", "client")
    }
    assert list(found.values()) == [95.0, 87.5, 15.0, 2, 2.0, "yes", "A medical"]
    assert rows[0]["waited"] == pytest.approx(2.0)
    assert rows[0]["hospital"] == "A"
    assert "SepsisLabel" not in rows[0]


def test_who_is_ill_in_the_first_six_hours_already_is_left_out():
    well, ill = hourly("well", [1.0, 2.0], [80.0, 81.0]), hourly("ill", [1.0, 2.0], [80.0, 81.0], [0, 1])
    assert by_patient(pl.concat([well, ill], how="vertical_relaxed"))["sepsis"].to_list() == ["no"]


@pytest.fixture
def clients() -> ct.Federated:
    rng = np.random.default_rng(0)
    x = rng.standard_cauchy(200)
    frame = pl.DataFrame({"x": x, "kind": ["a", "b"] * 100, "y": np.tanh(x), "site": ["s"] * 100 + ["t"] * 100})
    return ct.from_frame(frame, client="site", label="y", validation=0.2, seed=1)


def test_squeezed_numbers_stay_in_order_within_three_and_words_stay_as_they_are(clients):
    before, after = clients.validation.x, tables.clipped(clients).validation.x
    assert (np.argsort(before[:, 0]) == np.argsort(after[:, 0])).all()
    assert abs(before[:, 0]).max() > 3 > abs(after[:, 0]).max()
    assert after[:, 0] == pytest.approx(before[:, 0] / np.sqrt(1 + before[:, 0] ** 2 / 9))
    assert (before[:, 1:] == after[:, 1:]).all()


def test_guessing_takes_nothing_of_its_own_loss_away():
    train, validation = np.array([0.0, 2.0]), np.array([1.0, 4.0])
    assert tables.guess_loss(train, validation, None) == pytest.approx(4.5)
    shares = tables.guess_loss(np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1]), 2)
    assert shares == pytest.approx(np.log(2))


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch, capsys):
    asked = []

    def trained(name, candidate, seed, algorithm, rows):
        asked.append((name, candidate, seed, rows))
        return {"skill": 0.25, "seconds": 0.0, "clients": 2, "rows": 9}

    out = tmp_path / "tables.json"
    out.write_text(json.dumps({"loans/general/1": {"skill": 0.75, "seconds": 0.0, "clients": 2, "rows": 9}}))
    monkeypatch.setattr(tables, "trained", trained)
    words = ["--tables", "loans", "--candidates", "general;boosting", "--seeds", "2", "--rows", "40", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["tables", *words])
    tables.main()
    assert asked == [("loans", "boosting", 1, 40), ("loans", "general", 2, 40), ("loans", "boosting", 2, 40)]
    assert "| loans | 2       | 9          | 0.500   | 0.250    |" in capsys.readouterr().out
    assert len(json.loads(out.read_text())) == 4
