"""Gradient boosting beside federated methods: on the very same rows, by the same scores, and not made twice."""

from __future__ import annotations

import csv
import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import accuracy_score, f1_score, r2_score, roc_auc_score
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.errors import RunFolderError, UnknownName, UsageError
from coterie.experiments import baselines
from coterie.experiments.baselines import ALONE, POOLED, fit_trees
from coterie.experiments.settings import Settings
from coterie.seeding import number
from coterie.target import Target


def shops(rows=80, clients=3, seed=0):
    """A table whose label depends on a threshold that is the same in all shops."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows * clients, 2))
    frame = pl.DataFrame({"shop": np.repeat([f"shop-{i}" for i in range(clients)], rows), "a": x[:, 0], "b": x[:, 1]})
    return frame.with_columns(
        sold=pl.Series(np.where(x[:, 0] * x[:, 1] > 0, "yes", "no")), price=pl.Series(100 + 20 * x[:, 0])
    )


@pytest.fixture(scope="module")
def classes():
    return ct.from_frame(shops().drop("price"), client="shop", label="sold")


@pytest.fixture(scope="module")
def compared(classes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    return ct.compare(["fedavg"], classes, rounds=2, seeds=2, baseline="gbm", metric="auroc", out=folder)


def by_hand(data, seed):
    """The predictions of scikit-learn's own classifier for the test rows of each client, alone and pooled."""
    said = {ALONE: [], POOLED: []}
    pooled = HistGradientBoostingClassifier(random_state=number(seed, "gbm") % (1 << 32)).fit(
        data.train.x, data.train.y
    )
    for i, name in enumerate(data.names):
        own = HistGradientBoostingClassifier(random_state=number(seed, "gbm", name) % (1 << 32))
        said[ALONE].append(own.fit(*data.train.of(i)).predict_proba(data.test.of(i)[0]))
        said[POOLED].append(pooled.predict_proba(data.test.of(i)[0]))
    return said


def test_scores_are_those_of_scikit_learn_on_the_same_rows(compared, classes):
    for seed, name in ((1, ALONE), (2, ALONE), (1, POOLED)):
        found = compared.summaries[name][seed - 1]
        said, truth = by_hand(classes, seed)[name], [classes.test.of(i)[1] for i in range(3)]
        weights = classes.test.sizes
        accuracy = [accuracy_score(y, p.argmax(1)) for y, p in zip(truth, said, strict=True)]
        f1 = [f1_score(y, p.argmax(1), average="macro") for y, p in zip(truth, said, strict=True)]
        auroc = [roc_auc_score(y, p[:, 1]) for y, p in zip(truth, said, strict=True)]
        assert found["accuracy"] == pytest.approx(np.average(accuracy, weights=weights))
        assert found["macro_f1"] == pytest.approx(np.average(f1, weights=weights))
        assert found["metric"] == pytest.approx(np.average(auroc, weights=weights))
        assert found["worst_client"] == pytest.approx(min(auroc))


def test_they_are_rows_of_the_same_table_with_gains_and_the_cost_of_staying(compared):
    rows = {row["algorithm"]: row for row in compared.rows()}
    assert list(rows) == ["fedavg", "local", ALONE, POOLED]
    assert rows[POOLED]["gain"] == pytest.approx(rows[POOLED]["auroc"] - rows["fedavg"]["auroc"])
    told = str(compared)
    assert "gbm (pooled) is a ceiling, not private" in told
    best = max((name for name in rows if name != POOLED), key=lambda name: rows[name]["auroc"])
    cost = rows[POOLED]["auroc"] - rows[best]["auroc"]
    told = " ".join(told.split())
    much = f"costs {cost:.3f}" if cost > 0 else f"costs nothing here: it is worse by {-cost:.3f}"
    assert f"That the data may not move {much}" in told
    assert f"against {best}" in told
    assert "2 rounds" in told  # not "1 to 2": a baseline has no rounds


def test_finished_ones_are_read_and_others_made_again(compared, classes, monkeypatch):
    again = {"rounds": 2, "seeds": 2, "baseline": "gbm", "metric": "auroc", "out": compared.folder}
    monkeypatch.setattr(baselines, "fit_gbm", lambda *_: pytest.fail("it was made again"))
    same = ct.compare(["fedavg"], classes, **again)
    assert same.summaries[POOLED] == compared.summaries[POOLED]
    with pytest.raises(pytest.fail.Exception, match="made again"):
        ct.compare(["fedavg"], classes, **{**again, "out": compared.folder / "elsewhere"})


def test_none_is_made_beside_runs_of_other_settings(compared, classes, monkeypatch):
    monkeypatch.setattr(baselines, "fit_gbm", lambda *_: pytest.fail("time was spent, and a baseline overwritten"))
    with pytest.raises(RunFolderError, match="begun with lr"):
        ct.compare(["fedavg"], classes, rounds=2, seeds=2, baseline="gbm", metric="auroc", lr=0.5, out=compared.folder)


def test_each_client_has_a_row(compared, classes):
    with (compared.folder / "baseline-gbm" / "seed-1" / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == list(classes.names)
    said = by_hand(classes, 1)
    for i, row in enumerate(rows):
        y = classes.test.of(i)[1]
        for prefix, name in (("alone", ALONE), ("pooled", POOLED)):
            assert float(row[f"{prefix}_accuracy"]) == pytest.approx(accuracy_score(y, said[name][i].argmax(1)))
        assert int(row["test"]) == len(y)


def test_errors_of_a_regression_are_in_the_user_s_units():
    data = ct.from_frame(shops().drop("sold"), client="shop", label="price")
    found = ct.compare(["fedavg"], data, rounds=1, seeds=1, local=False, baseline="gbm").summaries[POOLED][0]
    model = HistGradientBoostingRegressor(random_state=number(1, "gbm") % (1 << 32)).fit(data.train.x, data.train.y)
    said, truth = (data.schema.in_units(y) for y in (model.predict(data.test.x), data.test.y))
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((said - truth) ** 2)), rel=1e-4)
    within = [data.schema.in_units(data.test.of(i)[1]).var() for i in range(3)]
    assert found["r2"] == pytest.approx(1 - found["rmse"] ** 2 / np.average(within, weights=data.test.sizes), rel=1e-4)
    assert r2_score(truth, said) > 0.9


def test_metrics_are_in_the_user_s_units_and_clients_weigh_as_asked():
    rng = np.random.default_rng(0)

    def part(rows, noise):
        x = rng.normal(size=(rows, 2))
        return x, x[:, 0] + noise * rng.normal(size=rows)

    sizes = {"a": (200, 10, 0.1), "b": (60, 40, 2.0)}
    clients = {k: {"train": part(n, noise), "test": part(m, noise)} for k, (n, m, noise) in sizes.items()}
    data = replace(ct.from_arrays(clients), unit=10.0)
    for by, weights in (("test", data.test.sizes), ("train", data.train.sizes)):
        both = baselines.fit_gbm(data, Settings("fedavg", weigh_by=by, metric="mae"), no_progress)
        found = both[POOLED]
        own = [row["metric"] for row in found.rows]
        assert found.summary["metric"] == pytest.approx(np.average(own, weights=weights))
        squares = [row["rmse"] ** 2 for row in found.rows]
        assert found.summary["rmse"] == pytest.approx(np.sqrt(np.average(squares, weights=weights)))
    model = HistGradientBoostingRegressor(random_state=number(1, "gbm") % (1 << 32)).fit(data.train.x, data.train.y)
    x, y = data.test.of(1)
    assert own[1] == pytest.approx(10 * np.abs(model.predict(x) - y).mean())


@contextmanager
def no_progress(label, total):
    yield lambda done: None


def test_what_was_not_seen_in_training_is_unlikely_and_never_fails():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    one = fit_trees(x, np.ones(30, np.int64), Target(3), 1)(x)
    assert one.argmax(1).tolist() == [1] * 30
    assert one[:, 1].tolist() == [0.0] * 30
    two = fit_trees(x, np.where(x[:, 0] > 0, 2, 0), Target(3), 1)(x)
    assert set(two.argmax(1).tolist()) <= {0, 2}


def test_several_labels_and_targets_have_a_model_each():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    flags = (x > 0).astype(np.float32)
    assert ((fit_trees(x, flags, Target(2, 2), 1)(x) > 0) == flags).mean() > 0.98
    assert np.abs(fit_trees(x, x, Target(None, 2), 1)(x) - x).mean() < 0.1


def test_images_and_unknown_names_are_refused_before_anything_is_trained(images, tmp_path):
    with pytest.raises(UsageError, match=r"baseline gbm is for rows of numbers, and .* has examples of shape"):
        ct.compare(["fedavg"], images(sizes=(20, 20)), rounds=1, seeds=1, baseline="gbm", out=tmp_path / "a")
    assert not list((tmp_path / "a").glob("fedavg/*/config.toml"))
    with pytest.raises(UnknownName, match="unknown baseline 'gmb'"):
        ct.compare(["fedavg"], images(sizes=(20, 20)), rounds=1, seeds=1, baseline="gmb")


def test_the_command_line_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shops().drop("price").write_csv("shops.csv")
    words = ["compare", "fedavg", "--data", "shops.csv", "--client", "shop", "--label", "sold", "--rounds", "2"]
    words += ["--seeds", "1", "--no-local", "--baseline", "gbm", "--quiet", "--out", "out"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, found.output
    assert POOLED in found.output
    assert "That the data may not move" in " ".join(found.output.split())
    assert POOLED in json.loads((tmp_path / "out" / "comparison.json").read_text())["runs"]
    monkeypatch.setattr(baselines, "fit_gbm", lambda *_: pytest.fail("it was made again"))
    assert CliRunner().invoke(app, words).exit_code == 0
    shops(seed=1).drop("price").write_csv("shops.csv")
    with pytest.raises(pytest.fail.Exception, match="made again"):  # other files
        CliRunner().invoke(app, words)
    refused = CliRunner().invoke(app, [*words[:-6], "--baseline", "trees"])
    assert refused.exit_code == 2


def test_a_damaged_file_of_scores_is_made_again(tmp_path, classes):
    assert baselines.load_baseline(tmp_path, {}) is None
    (tmp_path / "scores.json").write_text("{")
    assert baselines.load_baseline(tmp_path, {}) is None
    found = {POOLED: baselines.Baseline({"accuracy": 1.0}, ({"client": "a", "train": 1, "test": 1, "accuracy": 1.0},))}
    both = {ALONE: replace(found[POOLED]), **found}
    baselines.save_baseline(tmp_path, {"seed": 1}, both)
    assert baselines.load_baseline(tmp_path, {"seed": 1}) == both
    assert baselines.load_baseline(tmp_path, {"seed": 2}) is None
