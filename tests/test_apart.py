"""What sets the clusters apart: effects of the right size, intervals that hold together, and only from sums."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.client_functions import input_sums, label_sums
from coterie.data.tables.inputs import Input
from coterie.errors import RunFolderError
from coterie.experiments.apart import MISSING, Apart, ColumnSums, compare_clusters, without_repeats
from coterie.protocol.client_function import ClientData
from coterie.reporting.apart_view import apart_table


def sums(means, columns=None, squares=None):
    means = np.asarray(means, dtype=float)
    columns = columns or tuple(Input(f"c{i}") for i in range(means.shape[1]))
    return ColumnSums(columns, means, np.ones_like(means) if squares is None else np.asarray(squares, dtype=float))


def clinics(seed=0, rows=60):
    """Six clinics: the first three have old patients who smoke, the others young ones; ``noise`` is the same in all."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(6):
        old = number < 3
        age = rng.normal(70 if old else 50, 5, rows)
        parts.append(
            pl.DataFrame(
                {
                    "clinic": [f"clinic-{number}"] * rows,
                    "age": age,
                    "smokes": np.where(rng.random(rows) < (0.8 if old else 0.2), "yes", "no"),
                    "noise": rng.normal(size=rows),
                    "ill": np.where(rng.random(rows) < 0.5, "yes", "no"),
                }
            )
        )
    return ct.from_frame(pl.concat(parts), client="clinic", label="ill")


@pytest.fixture(scope="module")
def run():
    return ct.run("given(half)", halved(clinics()), rounds=1)


def halved(data):
    """The data with an attribute that names the half of the clinics, by which ``given`` puts them into clusters."""
    return replace(data, attributes={"half": ("old",) * 3 + ("young",) * 3})


def client(x, y, classes):
    return ClientData(x, y, classes, make_model=None, models=(), make_rng=None)


def test_clients_give_means_and_squared_deviations_and_nothing_else():
    rng = np.random.default_rng(0)
    x, y = (1e4 + rng.normal(size=(9000, 3))).astype(np.float32), rng.integers(0, 4, 9000)
    assert np.allclose(input_sums(client(x, y, 5)), [x.mean(0, dtype=float), x.var(0, dtype=float)], rtol=1e-9)
    shares = np.bincount(y, minlength=5) / 9000
    assert np.allclose(label_sums(client(x, y, 5)), [shares, shares * (1 - shares)])
    target = rng.normal(size=9000)
    assert np.allclose(label_sums(client(x, target, None)), [[target.mean()], [target.var()]])


def test_effects_are_in_standard_deviations_of_all_rows_by_hand():
    means = [[2.0], [4.0], [3.0], [0.0], [1.0], [-1.0]]
    found = compare_clusters(sums(means), np.array([0, 0, 0, 1, 1, 1]), np.full(6, 10))
    (first, second) = found.clusters
    scale = np.sqrt(1 + np.var(means))  # within clients 1, and between them
    (difference,) = first.differences
    assert difference.effect == pytest.approx(3 / scale)
    assert (difference.cluster, difference.rest) == pytest.approx((3.0, 0.0))
    test = stats.ttest_ind([2, 4, 3], [0, 1, -1], equal_var=False).confidence_interval(1 - 0.05 / 2)
    assert (difference.low, difference.high) == pytest.approx((test.low / scale, test.high / scale))
    assert second.differences[0].effect == pytest.approx(-difference.effect)


def test_clients_count_alike_and_rows_only_for_the_scale():
    labels, means = np.array([0, 0, 0, 1, 1, 1]), [[2.0], [4.0], [3.0], [0.0], [1.0], [-1.0]]
    same, large = (
        compare_clusters(sums(means), labels, n).clusters[0].differences[0] for n in (np.ones(6), [1, 9, 1, 1, 1, 1])
    )
    assert same.cluster == large.cluster == 3.0
    assert same.strength != large.strength


def test_the_scale_is_the_deviation_of_all_rows_together():
    rng = np.random.default_rng(0)
    clients = [rng.normal(centre, spread, (size, 2)) for centre, spread, size in ((0, 1, 5), (3, 4, 50), (9, 2, 20))]
    found = sums([x.mean(0) for x in clients], squares=[x.var(0) for x in clients])
    assert found.scales(np.array([5, 50, 20])) == pytest.approx(np.concatenate(clients).std(0))


def test_small_clusters_are_not_judged():
    found = compare_clusters(sums(np.arange(6.0)[:, None]), np.array([0, 0, 1, 1, 1, 1]), np.ones(6))
    assert [each.judged for each in found.clusters] == [False, False]  # 2 clients against 4, and 4 against 2
    assert all(each.differences == () for each in found.clusters)
    text = str(list(apart_table(found).columns[2].cells))
    assert "its 2 are too few" in text
    assert "the 2 others are too few" in text


def test_intervals_hold_together_where_clusters_mean_nothing():
    """Of 200 runs with clusters drawn at random and 20 columns, about 5 % at most find any difference at all."""
    rng, wrong, uncorrected = np.random.default_rng(1), 0, 0
    for _ in range(200):
        means, labels = rng.normal(size=(12, 20)), rng.permutation(np.repeat([0, 1, 2], 4))
        found = compare_clusters(sums(means), labels, np.full(12, 50))
        wrong += any(each.certain for each in found.clusters)
        uncorrected += stats.ttest_ind(means[labels == 0], means[labels != 0], equal_var=False).pvalue.min() < 0.05
    assert wrong <= 20  # 5 % of 200 is 10; 21 or more has a chance below 0.001
    assert uncorrected > 100  # the negative control: without the correction most runs would find something


def test_a_value_that_all_of_a_cluster_have_is_no_proof_without_a_spread():
    """Of 5 against 5 it is certain, but the interval is wide; of 3 against 3 among 200 columns it is not certain."""
    five = compare_clusters(
        sums(np.repeat([[1.0], [0.0]], 5, axis=0), (Input("region", "west"),)), np.repeat([0, 1], 5), np.ones(10)
    )
    (west,) = five.clusters[0].certain
    assert (west.effect, west.high) == (1.0, 1.0)
    spread = 0.25 / 6  # five ones, and one more at the mean of everybody, 0.5
    assert west.low == pytest.approx(1 - stats.t.isf(0.0125, 8) * np.sqrt(2 * spread / 5))
    many = np.random.default_rng(0).normal(size=(6, 200))
    many[:, 0] = [1, 1, 1, 0, 0, 0]
    columns = (Input("region", "west"), *(Input(f"c{i}") for i in range(199)))
    three = compare_clusters(sums(many, columns), np.repeat([0, 1], 3), np.ones(6))
    assert not any(each.certain for each in three.clusters)


def test_the_largest_certain_difference_comes_first():
    means = np.zeros((8, 3))
    means[:4] = [1.0, 5.0, 2.0]
    means += np.random.default_rng(0).normal(0, 0.05, means.shape)
    (first, _) = compare_clusters(sums(means), np.repeat([0, 1], 4), np.ones(8)).clusters
    assert [each.column for each in first.differences] == ["c1", "c2", "c0"]
    assert len(first.certain) == 3


def test_columns_that_never_vary_are_not_looked_at():
    found = compare_clusters(
        sums(np.ones((6, 2)), squares=np.tile([0.0, 1.0], (6, 1))), np.repeat([0, 1], 3), np.ones(6)
    )
    assert found.looked_at == 1
    assert [each.column for each in found.clusters[0].differences] == ["c1"]


def test_of_two_values_one_is_shown_and_missing_ones_count():
    columns = (Input("sex", "f"), Input("sex", "m"), Input("size", "l"), Input("size", "s"), Input("age"))
    means = [[0.25, 0.75, 0.5, 0.25, 0.0], [0.5, 0.5, 0.5, 0.5, 1.0]]
    found = without_repeats(sums(means, columns))
    assert [str(each) for each in found.columns] == ["sex=m", "size=l", "size=s", "age", f"size={MISSING}"]
    assert found.means[:, -1].tolist() == [0.25, 0.0]


def test_a_run_names_the_columns_in_the_table_s_units(run):
    found = run.apart()
    for each in found.clusters:
        old = run.labels[0] == each.cluster
        names = [difference.column for difference in each.certain]
        assert sorted(names) == ["age", "smokes=yes"]
        age, smokes = (next(d for d in each.certain if d.column == name) for name in ("age", "smokes=yes"))
        assert age.cluster == pytest.approx(70 if old else 50, abs=2)
        assert abs(age.effect) > 1
        assert smokes.cluster == pytest.approx(0.8 if old else 0.2, abs=0.1)
        assert smokes.effect == pytest.approx(smokes.cluster - smokes.rest)
    assert found.looked_at == 4  # age, smokes=yes, noise, ill=yes


def test_it_is_saved_with_the_run_and_shown_again(tmp_path):
    folder = tmp_path / "run"
    run = ct.run("given(half)", halved(clinics()), rounds=1, out=folder)
    assert Apart.load(folder) == run.apart()
    shown = CliRunner().invoke(app, ["show", str(folder)])
    assert shown.exit_code == 0, shown.output
    assert "what sets the clusters apart" in shown.output
    assert "age" in shown.output
    told = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).output)
    assert {each["cluster"] for each in told["apart"]["clusters"]} == {0, 1}
    (folder / "apart.json").write_text("{}")
    changed = CliRunner().invoke(app, ["show", str(folder)])
    assert changed.exit_code == 2
    assert "apart.json is not what the run wrote" in changed.output


def test_one_cluster_or_one_client_in_each_has_nothing_to_set_apart(tmp_path, run):
    for algorithm in ("fedavg", "local"):
        other = ct.run(algorithm, run.data, rounds=1, out=tmp_path / algorithm)
        assert other.apart() is None
        assert not (tmp_path / algorithm / "apart.json").exists()
    with pytest.raises(RunFolderError, match="does not say what sets its clusters apart"):
        Apart.load(tmp_path / "local")
    off = ct.run("given(half)", run.data, rounds=1, out=tmp_path / "off", apart=False)
    assert off.summary["clusters_found"] == 2
    assert not (tmp_path / "off" / "apart.json").exists()


def test_of_images_only_the_classes_are_told(images):
    run = ct.run("wecfl(clusters=2)", images(sizes=(20,) * 6), rounds=2)
    found = run.apart()
    names = {each.column for cluster in found.clusters for each in cluster.differences}
    assert all(name.startswith("class=") for name in names)


def test_targets_are_compared_in_their_own_unit():
    rng = np.random.default_rng(3)
    high = np.repeat([True, False], 180)
    frame = pl.DataFrame(
        {
            "site": np.repeat([f"s{i}" for i in range(6)], 60),
            "x": rng.normal(size=360),
            "price": np.where(high, 300.0, 100.0) + rng.normal(0, 10, 360),
        }
    )
    data = replace(ct.from_frame(frame, client="site", label="price"), attributes={"half": ("a",) * 3 + ("b",) * 3})
    run = ct.run("given(half)", data, rounds=1)
    first = run.apart().clusters[run.labels[0]]
    (price,) = first.certain
    assert price.column == "price"
    assert (price.cluster, price.rest) == pytest.approx((300, 100), abs=3)


def test_a_table_lines_up_in_80_columns(run):
    text = Console(width=80, record=True, file=io.StringIO())
    text.print(apart_table(run.apart()))
    told = text.export_text()
    assert max(map(len, told.splitlines())) <= 80
    assert "sd [" in told
    assert "points [" in told
