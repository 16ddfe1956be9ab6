"""How many clusters, and whether to cluster at all: halves, held-out errors, samples of clients, runs that find it."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms import advised, algorithms, build_algorithm
from coterie.cli.main import app
from coterie.errors import FederationError, UsageError
from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings, load_settings
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.server.clustering import advice as advice_module
from coterie.server.clustering import probe as probe_module
from coterie.server.clustering.advice import (
    MOST,
    SAMPLES,
    by_halves,
    clusters_of,
    consult,
    held_out,
    on_distances,
    sentence,
)
from coterie.server.clustering.clusterers import agglomerative, hdbscan, kmeans, kmedoids, meanshift
from coterie.server.clustering.probe import probe
from coterie.server.exchange import Meter
from coterie.server.loop import rounds
from coterie.server.start import BEGINNING

KEY = Key(1, BEGINNING)
RATE = Fit(steps=1, batch=100, lr=0.1, momentum=0.0)


@pytest.fixture
def few_samples(monkeypatch):
    """What is said of an advice of ten samples holds as well of fifty; a sample that differs weighs more."""
    for module in (advice_module, probe_module):
        monkeypatch.setattr(module, "SAMPLES", 10)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def pairs_of(groups, noise, seed=0, size=30):
    """Two noisy unit vectors for each client, around the direction of its group: all first ones, and all second."""
    rng = np.random.default_rng(seed)
    centres = unit(rng.normal(size=(max(groups) + 1, size)))
    return [unit(centres[list(groups)] + noise / size**0.5 * rng.normal(size=(len(groups), size))) for _ in range(2)]


def halves_of(*given, **options):
    """The inner products of these vectors."""
    rows = np.concatenate(pairs_of(*given, **options))
    return rows @ rows.T


def ask_probe(sim, fit=Fit(lr=0.05, batch=8)):
    return probe(sim, KEY, Meter(sim, KEY).ask, fit)


def same(one, other, rel=1e-4):
    """Whether two advices say the same, but for the rounding of sums in another order."""
    losses = [pytest.approx(value, rel=rel) == one["losses"][name] for name, value in other["losses"].items()]
    return all(losses) and all(one[name] == other[name] for name in ("decision", "clusters", "votes", "rounds"))


class TestHalves:
    def test_of_two_points_each_half_sees_one(self, lines, simulator):
        """At weight w, bias 0 the points (1, s) and (-1, -s) pull the weight alike and the bias apart."""
        sim = simulator(lines([3.0], [1]), "linear", threads=1)
        stack, zero = Stack(np.array([[1.0, 0.0]]), np.zeros((1, 0))), np.array([0])
        found = [
            sim.ask(Task(fit=(replace(RATE, half=half),)), Sent(stack), zero, zero, KEY).params[0] for half in (0, 1)
        ]
        assert [w for w, _ in found] == pytest.approx([1.4, 1.4])
        assert sorted(b for _, b in found) == pytest.approx([-0.4, 0.4])

    @pytest.mark.parametrize("plan", ["native", "workers", "lockstep"])
    def test_a_half_is_as_if_the_client_held_nothing_else(self, plan, images, simulator):
        data = images((7, 10, 1))
        sim, zeros, clients = simulator(data, plan=plan, threads=1), np.zeros(3, dtype=np.int64), np.arange(3)
        stack = Stack(*(part[None] for part in sim.model.initial(1)))
        whole = replace(RATE, steps=3)
        for half in (0, 1):
            found = sim.ask(Task(fit=(replace(whole, half=half),)), Sent(stack), zeros, clients, KEY).params
            for client, size in enumerate(data.train.sizes):
                order = KEY.generator(data.names[client], "halves").permutation(size)
                first = (size + 1) // 2
                rows = order[:first] if half == 0 or size == 1 else order[first:]
                x, y = data.train.of(client)
                alone = replace(data.select([client]), train=ct.Split.join([(x[rows], y[rows])]))
                wanted = simulator(alone, threads=1).ask(Task(fit=(whole,)), Sent(stack), zeros[:1], clients[:1], KEY)
                np.testing.assert_allclose(found[client], wanted.params[0], atol=1e-6)

    def test_epochs_and_their_cost_are_those_of_the_half(self, images, simulator):
        data = images((7, 10, 1))
        sim, zeros = simulator(data, threads=1), np.zeros(3, dtype=np.int64)
        stack = Stack(*(part[None] for part in sim.model.initial(1)))
        for half, steps in ((None, 4 + 5 + 1), (0, 2 + 3 + 1), (1, 2 + 3 + 1)):
            fit = Fit(epochs=1, batch=2, half=half)
            assert sim.ask(Task(fit=(fit,)), Sent(stack), zeros, np.arange(3), KEY).cost.steps == steps

    def test_a_third_half_is_refused(self):
        with pytest.raises(UsageError, match="half is 2; it must be 0 or 1"):
            Fit(half=2)


class TestHeldOut:
    def test_errors_by_hand(self):
        """Two clients point east, two north: one mean is at (1/2, 1/2), 1/2 from each squared; two means are exact."""
        rows = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]] * 2)
        np.testing.assert_allclose(held_out(rows @ rows.T), [[0.5, 0.0, 0.0]] * 4, atol=1e-12)
        assert by_halves(rows @ rows.T) == 2

    def test_errors_are_those_of_explicit_means(self):
        rng = np.random.default_rng(3)
        rows = unit(rng.normal(size=(24, 5)))
        wanted = np.zeros((12, MOST))
        for seen, unseen in ((rows[:12], rows[12:]), (rows[12:], rows[:12])):
            for k in range(1, MOST + 1):
                labels = AgglomerativeClustering(k, linkage="ward").fit_predict(seen)
                means = [seen[labels == label].mean(axis=0) for label in labels]
                wanted[:, k - 1] += [((b - c) ** 2).sum() / 2 for b, c in zip(unseen, means, strict=True)]
        np.testing.assert_allclose(held_out(rows @ rows.T), wanted, atol=1e-12)

    def test_clusters_of_one_half_judged_on_that_very_half_would_always_be_more(self):
        """The control: without a held-out half, chance passes for structure."""
        products = halves_of([0] * 20, noise=1.0)
        fooled = np.tile(products[:20, :20], (2, 2))
        assert by_halves(products) == 1
        assert by_halves(fooled) == MOST

    @settings(max_examples=25)
    @given(st.integers(1, 5), st.integers(0, 10**6), st.randoms())
    def test_separate_groups_are_found_in_any_order(self, groups, seed, random):
        truth = [i % groups for i in range(6 * groups)]
        random.shuffle(truth)
        products = halves_of(truth, noise=0.5, seed=seed)
        labels = clusters_of(products, np.arange(len(truth)))
        assert len(set(zip(labels.tolist(), truth, strict=True))) == groups == labels.max() + 1

    @pytest.mark.parametrize("seed", [0, 2, 7])
    def test_clusters_are_those_of_the_means_of_both_halves(self, seed):
        """With any two of the four blocks of inner products one client or more would be elsewhere, for some seed."""
        one, other = pairs_of([0, 1, 2] * 6, noise=1.5, seed=seed)
        wanted = AgglomerativeClustering(3, linkage="ward").fit_predict((one + other) / 2)
        found = clusters_of(halves_of([0, 1, 2] * 6, noise=1.5, seed=seed), np.arange(18))
        assert adjusted_rand_score(wanted, found) == 1

    @settings(max_examples=25)
    @given(st.integers(0, 10**6))
    def test_noise_alone_is_one_cluster(self, seed):
        assert by_halves(halves_of([0] * 30, noise=2.0, seed=seed)) == 1

    def test_a_gain_within_one_standard_error_is_no_reason_for_more_clusters(self):
        """Two pairs of clients differ a little, and one half of one client happens to disagree a lot."""
        angles = np.array([[0.0, 0.1, 0.5, 0.6], [0.0, 0.1, 0.5, 0.15]]).ravel()
        rows = np.column_stack([np.cos(angles), np.sin(angles)])
        errors = held_out(rows @ rows.T)
        assert errors.mean(axis=0).argmin() == 2
        gains = errors[:, 0] - errors[:, 2]
        assert 0 < gains.mean() < gains.std(ddof=1) / 2
        assert by_halves(rows @ rows.T) == 1

    def test_clients_that_all_differ_reach_the_limit(self):
        assert by_halves(halves_of(range(25), noise=0.1)) == MOST == 10

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_few_clients_are_never_a_cluster_each(self, count):
        assert by_halves(halves_of(range(count), noise=0.0)) == max(1, count - 1)

    def test_rounding_is_no_difference(self):
        rows = np.tile(unit(np.random.default_rng(0).normal(size=(1, 1000))), (60, 1)).astype(np.float32)
        assert by_halves((rows @ rows.T).astype(np.float64)) == 1


class TestConsult:
    def test_what_all_samples_find_is_certain(self):
        products = halves_of([0, 1] * 10, noise=0.3)
        found = advice_module.on_halves(products, KEY)
        assert not found["one_model_enough"]
        assert (found["clusters"], found["confidence"], found["pairs"], found["by"]) == (2, 1.0, 1.0, "halves")
        assert found["votes"] == {"2": 1.0}

    def test_what_hangs_on_one_client_is_as_certain_as_it_is_drawn(self):
        """A cluster of one of four clients is in a sample of four draws with probability 1 - (3/4)^4 = 0.68."""
        whole = np.array([0, 0, 0, 1])
        found = consult(whole, lambda sample: np.unique(whole[sample], return_inverse=True)[1], KEY, "hand")
        assert found["confidence"] == pytest.approx(1 - 0.75**4, abs=0.2)
        assert found["confidence"] == found["votes"]["2"] == 1 - found["votes"]["1"]
        assert found["pairs"] == 1.0

    def test_each_client_is_at_most_once_in_a_sample_and_samples_differ(self, monkeypatch):
        monkeypatch.setattr(advice_module, "LARGEST", 7)
        seen = []
        consult(np.zeros(30, int), lambda sample: seen.append(tuple(sample)) or np.zeros(len(sample), int), KEY, "hand")
        assert len(seen) == SAMPLES
        assert len(set(seen)) > SAMPLES // 2
        assert all(len(set(sample)) == len(sample) == 7 for sample in seen)

    @pytest.mark.parametrize(("most", "told"), [(3, "3 clusters or more (no more were tried): "), (4, "3 clusters: ")])
    def test_as_many_as_were_tried_may_be_more(self, most, told):
        whole = np.arange(30) % 3
        assert consult(whole, lambda sample: whole[sample], KEY, "hand", most)["text"].startswith(told)

    def test_two_clients_are_compared_where_both_are_drawn(self):
        """Of two draws from two clients both are drawn half of the time; one alone is one cluster."""
        found = on_distances(agglomerative(cut=1.0), np.array([[0.0, 9.0], [9.0, 0.0]]), KEY)
        assert found["clusters"] == 2
        assert found["confidence"] == found["votes"]["2"] == pytest.approx(0.5, abs=0.2)
        assert found["votes"]["1"] == pytest.approx(1 - found["confidence"])
        assert found["pairs"] == 1.0

    def test_pairs_that_part_in_samples_are_counted(self):
        found = consult(np.zeros(10, int), lambda sample: np.arange(len(sample)), KEY, "hand")
        assert (found["clusters"], found["confidence"], found["pairs"]) == (1, 0.0, 0.0)

    def test_unclear_groups_are_less_certain(self):
        sure, unsure = (advice_module.on_halves(halves_of([0, 1] * 10, noise), KEY) for noise in (0.3, 2.0))
        assert sure["confidence"] == 1.0
        assert unsure["clusters"] == 2
        assert unsure["confidence"] < 0.8

    @pytest.mark.parametrize(
        ("clusterer", "by"),
        [
            (kmedoids("auto"), "silhouette"),
            (kmedoids(3, by="gap"), "gap"),
            (kmeans(3), "silhouette"),
            (hdbscan(4), "hdbscan"),
        ],
    )
    def test_a_matrix_of_two_far_groups_says_two_whatever_was_asked_for(self, clusterer, by, few_samples):
        places = np.concatenate([np.linspace(0, 1, 8), np.linspace(20, 21, 8)])
        found = on_distances(clusterer, np.abs(np.subtract.outer(places, places)), KEY)
        assert (found["clusters"], found["by"]) == (2, by)
        assert found["confidence"] >= 0.6

    @pytest.mark.parametrize(
        ("clusterer", "again"), [(kmedoids("auto"), False), (meanshift(), False), (kmedoids(2), True)]
    )
    def test_what_was_found_already_is_found_again_only_if_a_number_was_given(self, clusterer, again):
        places, sizes = np.concatenate([np.linspace(0, 1, 8), np.linspace(20, 21, 8)]), []
        distances, plain = np.abs(np.subtract.outer(places, places)), clusterer.find
        watched = replace(
            clusterer, find=lambda rows, *given, **options: sizes.append(len(rows)) or plain(rows, *given, **options)
        )
        labels = watched(distances, KEY)
        sizes.clear()
        assert on_distances(watched, distances, KEY, labels)["clusters"] == 2
        assert (16 in sizes) == again

    @pytest.mark.parametrize("clusterer", [agglomerative(2), kmedoids(2)])
    def test_it_needs_no_package_of_k_medoids(self, clusterer, monkeypatch):
        monkeypatch.setitem(sys.modules, "kmedoids", None)
        places = np.array([0.0, 1.0, 2.0, 20.0, 21.0, 22.0])
        assert on_distances(clusterer, np.abs(np.subtract.outer(places, places)), KEY)["clusters"] == 2

    @pytest.mark.parametrize(
        ("words", "fragment"),
        [
            ((1, 1.0, "halves"), "One model is enough: grouping"),
            ((1, 0.4, "halves"), "One model may be enough"),
            ((1, 1.0, "gap"), "no groups stand out among the clients (by gap); 100 % of"),
            ((3, 0.9, "halves"), "3 clusters: these groups best predict"),
            ((3, 0.5, "halves"), "Perhaps 3 clusters"),
            ((10, 1.0, "halves", True), "10 clusters or more (no more were tried)"),
        ],
    )
    def test_the_sentence_says_it_plainly(self, words, fragment):
        assert fragment in sentence(*words)


class TestProbe:
    @pytest.mark.parametrize(("slopes", "clusters"), [((1.0,), 1), ((1.0, -1.0), 2)])
    def test_lines_of_one_or_two_slopes(self, slopes, clusters, lines, simulator):
        found = ask_probe(simulator(lines(slopes * (12 // len(slopes)), [20] * 12), "linear", threads=1))
        assert found["clusters"] == clusters
        assert found["decision"] == ("one model" if clusters == 1 else "clusters")
        assert found["confidence"] >= 0.8

    @pytest.mark.parametrize("groups", [1, 3])
    def test_images_of_groups_that_name_them_differently_in_any_order_of_clients(self, groups, images, simulator):
        data = images((40,) * 15, groups=groups)
        found = ask_probe(simulator(data, threads=1))
        assert found["clusters"] == groups
        assert found["confidence"] >= 0.9
        assert same(ask_probe(simulator(data.select(np.random.default_rng(0).permutation(15)), threads=1)), found)

    def test_those_who_are_absent_or_hold_one_example_have_no_say(self, images, simulator, flaky):
        data = images((40,) * 10 + (1, 1), groups=2)
        sim = simulator(data, threads=1)
        absent, without = flaky(sim, {BEGINNING: {0, 3}}), simulator(data.select([1, 2, *range(4, 10)]))
        found, wanted = ask_probe(absent), ask_probe(without)
        assert found["losses"].keys() == wanted["losses"].keys()
        assert (found["decision"], found["clusters"], found["votes"]) == tuple(
            wanted[name] for name in ("decision", "clusters", "votes")
        )

    def test_without_any_answer_it_fails_with_a_remedy(self, lines, simulator, flaky):
        sim = simulator(lines((1.0, -1.0), (2, 2)), "linear", threads=1)
        with pytest.raises(FederationError, match=r"none of 2 clients.*give the number of clusters"):
            ask_probe(flaky(sim, {BEGINNING: {0, 1}}))

    @pytest.mark.parametrize(("steps", "alone", "compared"), [(1, 10, 10), (3, 5, 12)])
    def test_its_cost_is_that_of_its_trials(self, steps, alone, compared, train, images, simulator):
        """One model learns, then it, clusters and local models go on; updates are compared; guessing is learnt."""
        fit = Fit(steps=steps, lr=0.05)
        sim = simulator(images((20,) * 8), threads=1)
        auto, told = (train(text, sim, 1, fit=fit)[0] for text in ("wecfl(clusters=auto)", "wecfl"))
        advice = auto.state.advice
        apart = 2 + ("clusters" in advice["losses"])
        steps = (advice["rounds"] + apart * alone) * fit.steps + 2 * compared + 3 * 20
        assert auto.cost.steps - told.cost.steps == 8 * steps


@pytest.mark.usefixtures("few_samples")
class TestAuto:
    @pytest.mark.parametrize(
        "text", ["ifca", "joint", "fesem", "wecfl(shots=1)", "ifca+cam(warmup=1)", "vote(fedavg,ifca)"]
    )
    def test_the_rest_is_the_run_of_that_number(self, text, train, images, simulator):
        sim = simulator(images((30,) * 12, groups=3), threads=1)
        auto, told = (train(text, sim, 3, clusters=clusters) for clusters in ("auto", 3))
        for one, other in zip(auto, told, strict=True):
            np.testing.assert_array_equal(one.state.stack.params, other.state.stack.params)
            np.testing.assert_array_equal(one.state.labels, other.state.labels)
            assert one.state.advice["clusters"] == 3

    @pytest.mark.parametrize("name", list(algorithms))
    def test_advice_stays_in_the_state_of_every_algorithm_and_changes_nothing_else(self, name, lines, simulator):
        sim = simulator(lines((1.0, -1.0) * 4, [5] * 8), "linear", threads=1)
        plain = build_algorithm(name, 2, RATE)
        asked, told = (list(islice(rounds(each, sim, 1), 3))[-1].state for each in (plain, advised(plain)))
        np.testing.assert_array_equal(asked.stack.params, told.stack.params)
        assert told.advice["by"] == "halves"
        assert told.advice["clusters"] == 2

    def test_methods_that_cluster_on_a_matrix_give_advice_for_nothing(self, train, images, simulator):
        sim = simulator(images((30,) * 12, groups=3), threads=1)
        done = train("gradcos", sim, 3, clusters=2)
        assert done[0].state.advice is None
        found = done[-1].state.advice
        assert (found["clusters"], found["by"]) == (3, "silhouette")
        assert len(done[-1].state.stack) == 2

    @pytest.mark.parametrize("clusters", ["many", "Auto"])
    def test_other_words_are_refused(self, clusters):
        with pytest.raises(UsageError, match=f"clusters is {clusters}; it must be .*or auto"):
            build_algorithm("ifca", clusters)
        with pytest.raises(UsageError, match=f"clusters is {clusters}; it must be a whole number .*or auto"):
            Settings("ifca", clusters=clusters)


SMALL = {"clients": 16, "partition": "rotation(0,180)", "steps": 2, "rounds": 4, "threads": 1}
FLAGS = ["--clients", "16", "--partition", "rotation(0,180)", "--steps", "2", "--rounds", "2", "--quiet"]


class TestRuns:
    @pytest.mark.parametrize("algorithm", ["ifca", "wecfl"])
    def test_a_resumed_run_knows_the_number_and_equals_an_unbroken_one(self, algorithm, tmp_path):
        asked = Settings(algorithm, clusters="auto", **SMALL)
        whole = run_settings(asked)
        run_settings(replace(asked, rounds=1), tmp_path / "run")
        config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
        assert config["clusters"] == "auto"
        again = replace(load_settings(tmp_path / "run" / "config.toml", {}), rounds=4)
        resumed = run_settings(again, tmp_path / "run", resume=True)
        np.testing.assert_array_equal(resumed.state.stack.params, whole.state.stack.params)
        assert [r["bytes_down"] for r in resumed.history] == [r["bytes_down"] for r in whole.history]
        assert resumed.summary["advise"] == whole.summary["advise"]
        assert resumed.summary["advise"]["clusters"] == resumed.summary["clusters_found"] == 2

    def test_a_run_in_python_takes_advice(self):
        clients = ct.load("digits").partition("iid", clients=20, seed=1)
        found = ct.run(ct.fedavg(), clients, rounds=1, advise=True).summary["advise"]
        assert found["one_model_enough"] is True
        assert "advise" not in ct.run(ct.fedavg(), clients, rounds=1).summary

    def test_the_command_line_prints_the_advice_and_the_summary_holds_it(self, tmp_path):
        told = CliRunner().invoke(app, ["run", "wecfl", "--clusters", "auto", *FLAGS, "--out", str(tmp_path / "a")])
        assert told.exit_code == 0, told.output
        assert "2 clusters: clusters predict held-out data better than one model" in told.stdout
        assert json.loads((tmp_path / "a" / "summary.json").read_text())["advise"]["clusters"] == 2
        told = CliRunner().invoke(app, ["run", "fedavg", "--advise", *FLAGS, "--json", "--out", str(tmp_path / "b")])
        assert json.loads(told.stdout)["advise"]["one_model_enough"] is False

    def test_a_comparison_lets_those_find_a_number_that_have_one(self, tmp_path):
        words = ["compare", "wecfl", "fedavg", "--clusters", "auto", *FLAGS, "--seeds", "1", "--out", str(tmp_path)]
        told = CliRunner().invoke(app, [*words, "--json"])
        assert told.exit_code == 0, told.output
        found = json.loads(told.stdout)
        assert found["wecfl"][0]["clusters_found"] == 2
        assert {name: "advise" in runs[0] for name, runs in found.items()} == {
            "wecfl": True,
            "fedavg": False,
            "local": False,
        }

    @pytest.mark.parametrize(
        ("words", "fragment"),
        [
            (["fedavg", "--clusters", "auto"], "clusters is auto, but fedavg has no number of clusters to find"),
            (["ocfl-hdbscan", "--clusters", "auto"], "but ocfl-hdbscan has no number"),
            (["wecfl", "--clusters", "many"], "clusters is many; it must be a whole number of at least 1, or auto"),
            (["wecfl", "--clusters", "2.5"], "clusters is 2.5"),
            (["wecfl", "--clusters", "0"], "clusters is 0; it must be at least 1"),
            (["wecfl(clusters=few)"], "clusters is few; it must be at least 1, or auto"),
        ],
    )
    def test_one_clear_line_for_a_number_that_cannot_be(self, words, fragment, tmp_path):
        told = CliRunner().invoke(app, ["run", *words, *FLAGS, "--out", str(tmp_path / "run")])
        assert told.exit_code == 2, told.output
        assert fragment in told.stderr
        assert told.stderr.count("\n") == 1
        assert not (tmp_path / "run").exists()
