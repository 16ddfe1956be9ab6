"""The driver of `make bench-peers` on made-up contestants, its table, and the baseline of `make bench`."""

from __future__ import annotations

import doctest
import json
import os
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import baseline, machine
from benchmarks.engine import CASES
from benchmarks.peers import __main__ as peers
from benchmarks.peers import environments
from benchmarks.peers.driver import Result, compete
from benchmarks.peers.memory import Peak, memory_of
from benchmarks.peers.protocol import Task, flat, task
from benchmarks.peers.table import Outcome, report
from benchmarks.peers.turns import Turns
from benchmarks.peers.workloads import cases, prepare

CONTESTANT = """
import sys
import numpy as np
from benchmarks.peers.protocol import serve
rounds = []
def work():
    print("libraries talk")
    rounds.append(1)
    if len(rounds) == {last}:
        sys.exit("out of breath")
serve(work, lambda: np.full(3, len(rounds)), "numpy")
"""


@pytest.fixture
def contestant(tmp_path):
    def command(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return [sys.executable, str(tmp_path / f"{name}.py")]

    return command


def test_contestants_do_their_rounds_and_one_that_fails_leaves_the_others_alone(contestant, tmp_path):
    commands = {
        "runs on": contestant("on", CONTESTANT.format(last=0)),
        "stops": contestant("stops", CONTESTANT.format(last=3)),
        "never starts": contestant("never", "import sys; sys.exit('no such library')"),
    }
    found = compete(commands, tmp_path, repeats=3)
    assert [len(result.seconds) for result in found.values()] == [3, 1, 0]
    assert [result.failure for result in found.values()] == ["", "out of breath", "no such library"]
    assert found["runs on"].versions == {"numpy": np.__version__}
    assert found["runs on"].start_up > 0
    assert found["runs on"].model.tolist() == [1, 1, 1]  # handed in after the first round
    assert "libraries talk" in (tmp_path / "runs on.log").read_text()


def test_a_contestant_that_is_silent_is_ended(contestant, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.driver.LONGEST_ANSWER", 0.2)
    found = compete({"silent": contestant("silent", "import time; time.sleep(60)")}, tmp_path, repeats=1)
    assert found["silent"].failure == "ended without a word"


def result(seconds, **more):
    return Result(start_up=1.5, first=2 * seconds, seconds=[seconds] * 3, memory=3 * 10**9, **more)


OUTCOME = Outcome(
    title="cnn, 200 clients",
    flops=100e9,
    start_loss=2.3,
    results={
        "JAX": result(3.0, versions={"jax": "9.9"}),
        "coterie": result(2.0, versions={"torch": "8.8"}),
        "fedbase": Result(failure="not installed: a | b"),
        "gemm": result(1.0),
        "fma": result(1.0),
    },
    losses={"coterie": 0.5, "JAX": 0.6},
    peaks={"gemm": 200e9, "fma": 400e9},
)


def test_the_table_has_the_fastest_first_and_says_why_others_are_missing():
    text = report([OUTCOME], repeats=3)
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows[0] == "| coterie | 2.00 | 1.00 | 25.0 | 12.5 | 3.0 | 1.5 | 4.0 | 0.50 |"
    assert rows[1] == "| JAX | 3.00 | 1.50 | 16.7 | 8.3 | 3.0 | 1.5 | 6.0 | 0.60 |"
    assert rows[2].startswith("| fedbase | failed: not installed: a / b |")
    assert len(rows) == 3
    assert len({row.count("|") for row in rows}) == 1
    assert machine.describe() in text
    assert "GEMM 200 GFLOP/s, FMA 400 GFLOP/s" in text
    assert text.endswith("Versions: jax 9.9, torch 8.8.\n")


@pytest.mark.parametrize("loss", [2.4, 1.9, -3.0], ids=["rises", "hardly falls", "falls too far"])
def test_a_contestant_that_did_other_work_is_marked(loss):
    odd = replace(OUTCOME, losses={"coterie": 0.5, "JAX": loss})
    assert f"| {loss:.2f} (!) |" in report([odd], repeats=3)
    assert not odd.did_the_work("JAX")


def test_of_one_clients_model_the_loss_only_has_to_fall():
    assert replace(OUTCOME, losses={"coterie": 0.5, "plain loop": 1.9}).did_the_work("plain loop")
    assert not replace(OUTCOME, losses={"coterie": 0.5, "plain loop": 2.4}).did_the_work("plain loop")


def test_a_contestant_whose_environment_cannot_be_made_is_missing_with_the_reason(monkeypatch, tmp_path):
    def refuse(name, root):
        raise environments.NotInstalled(f"no {name} for this Python")

    monkeypatch.setattr(environments, "python_of", refuse)
    commands, missing = peers.programs(["JAX", "plain loop"], tmp_path)
    assert list(commands) == ["coterie", "plain loop", "gemm", "fma"]
    assert missing["JAX"].failure == "not installed: no jax for this Python"


def test_every_contestant_has_a_program_and_pinned_requirements():
    for program, environment in peers.CONTESTANTS.values():
        assert (environments.REQUIREMENTS.parent / "contestants" / f"{program}.py").exists()
        if environment:
            lines = (environments.REQUIREMENTS / f"{environment}.txt").read_text().splitlines()
            assert all("==" in line for line in lines if not line.startswith("#"))


def test_a_workload_is_read_as_it_was_written(monkeypatch, tmp_path):
    (case,) = cases(["logistic"], clients=3)
    workload = prepare(case, tmp_path)
    monkeypatch.setattr(sys, "argv", ["contestant", str(workload.folder)])
    given = task()
    assert given == Task(workload.folder, "logistic", (64,), 3, 64, 10, 32, 5, 0.01, 0.9)
    x, y = given.examples_of(range(1, 3))
    assert (x.shape, y.shape) == ((2, 64, 64), (2, 64))
    np.testing.assert_array_equal(flat(given.module()), workload.start())
    assert workload.loss(np.zeros(650)) == pytest.approx(np.log(10), abs=1e-5)
    other = replace(OUTCOME.results["JAX"], model=np.zeros(5))
    judged = peers.judged(workload, {"JAX": other, "gemm": result(1.0), "fma": Result(failure="no compiler")})
    assert other.failure == "another model: 5 parameters instead of 650"
    assert list(judged.peaks) == ["gemm"]


def test_a_loop_waits_for_its_turn():
    turns, done = Turns(), []

    def loop():
        for number in range(2):
            turns.begin()
            done.append(number)
            turns.end()

    thread = threading.Thread(target=loop)
    thread.start()
    turns.round()
    assert done == [0]
    turns.round()
    thread.join()
    assert done == [0, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of processes is read from /proc")
def test_the_peak_of_memory_is_seen():
    peak, before = Peak(), memory_of(os.getpid())
    with peak.watching(os.getpid(), every=0.01):
        block = np.ones(8_000_000)
    assert peak.size > before + 0.9 * block.nbytes


def test_the_baseline_names_what_became_slower(tmp_path):
    assert doctest.testmod(baseline).failed == 0
    file = tmp_path / "baseline.json"
    assert "--save" in baseline.verdict({}, file)
    baseline.save({"cnn": {"auto / plain loop": 2.0}, "mlp": {"auto / plain loop": 1.5}}, file)
    baseline.save({"cnn": {"auto / plain loop": 1.8}}, file)
    assert baseline.verdict({"mlp": {"auto / plain loop": 1.3}}, file).startswith("nothing is slower")
    assert baseline.verdict({"mlp": {"auto / plain loop": 1.1}}, file) == (
        "SLOWER mlp: auto / plain loop was 1.50 and is 1.10, 27 % less"
    )


def test_the_committed_baseline_has_every_case():
    kept = json.loads(baseline.FILE.read_text())["ratios"]
    assert set(kept) == {case.model for case in CASES}
    assert all(ratio["auto / plain loop"] > 1 for ratio in kept.values())
