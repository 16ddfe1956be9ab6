"""Warm-ups and shots: the rounds that they need, and what counts as a shot."""

from __future__ import annotations

from itertools import islice

import pytest

from coterie.algorithms import build_algorithm
from coterie.api.run import run
from coterie.errors import UsageError
from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings
from coterie.models.combined import additive
from coterie.models.zoo import build_model
from coterie.protocol.task import Fit
from coterie.runtimes.simulator import Simulator
from coterie.server.loop import Conditions, check_rounds, rounds

QUICK = Fit(steps=2, batch=8, lr=0.05)


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("fedavg", 1),
        ("ifca", 1),
        ("wecfl(shots=4)", 4),
        ("lcfl(warmup=0)", 1),
        ("gradcos(warmup=3)", 4),
        ("briggs(warmup=2)", 3),
        ("ocfl-hdbscan", 2),
        ("ocfl-kmeans(shots=3)", 4),
        ("sattler", 22),
        ("ifca+cam(warmup=30)", 31),
        ("wecfl+cam(warmup=3)", 4),
        ("wecfl(shots=10)+cam(warmup=15)", 25),
        ("lcfl(warmup=2)+cam(warmup=3)", 6),
        ("vote(fedavg,ocfl-kmeans(shots=2))", 3),
    ],
)
def test_one_round_less_than_it_needs_is_refused_with_the_least_number(text, least):
    algorithm = build_algorithm(text, 2)
    check_rounds(algorithm, least)
    if least > 1:
        with pytest.raises(UsageError, match=rf"rounds is {least - 1}; .* needs at least {least} "):
            check_rounds(algorithm, least - 1)


def test_a_warm_up_that_would_swallow_the_run_is_refused_before_anything_is_made(tmp_path, images):
    """It ended as silent FedAvg, exit code 0, with one cluster."""
    settings = Settings("ifca+cam(warmup=30)", clients=8, clusters=2, model="mlp(8)", rounds=20)
    with pytest.raises(UsageError, match="at least 31"):
        run_settings(settings, tmp_path / "run")
    with pytest.raises(UsageError, match="at least 31"):
        run(build_algorithm("ifca+cam(warmup=30)", 2), images(), model="mlp(8)", rounds=20)
    assert not (tmp_path / "run").exists()


def test_with_the_least_number_of_rounds_clusters_form(images, simulator):
    for text in ("wecfl(shots=4)", "gradcos(warmup=3)", "ifca+cam(warmup=2)", "lcfl(warmup=1)+cam(warmup=2)"):
        algorithm = build_algorithm(text, 2, QUICK)
        model = algorithm.network(build_model("mlp(8)", (1, 8, 8), 4))
        done = []
        for step in rounds(algorithm, Simulator(images(), model), 1):
            done.append(step)
            if step.state.round >= algorithm.least_rounds:
                break
        assert done[-1].state.round == algorithm.least_rounds, text
        assert done[-1].state.formed, text
        assert len(done[-1].state.stack) == 2, text


class TestShots:
    """How often k-means has been called is seen by the centres that it leaves."""

    @staticmethod
    def moved(text, sim, count, **options):
        """In which rounds the centres changed."""
        found, before = [], None
        for step in islice(rounds(build_algorithm(text, 2, QUICK), sim, 1, conditions=Conditions(**options)), count):
            centres = step.state.memory.centres
            if before is None or (centres != before).any():
                found.append(step.state.round - 1)
            before = centres
        return found

    def test_they_are_rounds_without_a_warm_up(self, images, simulator):
        assert self.moved("wecfl(shots=3)", simulator(images()), 6) == [0, 1, 2]

    def test_they_count_after_the_warm_up_and_its_own_clustering(self, images):
        """Eleven rounds: a warm-up that counts as five ends with the starts of the clusters, then come three shots."""
        model = additive(build_model("mlp(8)", (1, 8, 8), 4))
        found = self.moved("wecfl(shots=3)+cam(warmup=5)", Simulator(images(), model), 7)
        assert found == [4, 5, 6, 7]

    def test_a_round_with_too_few_answers_is_none(self, images, simulator, flaky):
        late = flaky(simulator(images()), {1: range(1, 8)})
        assert self.moved("wecfl(shots=3)", late, 6) == [0, 2, 3]


@pytest.mark.parametrize("text", ["wecfl", "fesem(shots=2)", "ocfl-kmeans", "vote(fedavg,wecfl)"])
def test_too_few_answers_to_cluster_in_any_round_are_refused(text):
    """Two of six clients are asked a round: four clusters never form, and it would end as silent FedAvg."""
    settings = Settings(text, clients=6, clusters=4, partition="rotation(0,180)", model="mlp(8)", participation=0.34)
    with pytest.raises(UsageError, match=r"at most 2 clients are asked in a round; .* needs 4 answers to cluster"):
        run_settings(settings)
