"""A function of a user's own package may stand wherever a name stands, in Python, on the command line and in files."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms import build_algorithm
from coterie.cli.main import app
from coterie.data import parse_partition
from coterie.errors import UsageError
from coterie.experiments.placement import load_trained
from coterie.outside import find_outside, is_outside
from coterie.server.clustering.clusterers import clusterers

MODULE = '''
from dataclasses import replace
import numpy as np
import coterie as ct
from coterie.data.dataset import Owners
from coterie.data.partitions.base import Share, Shares
from coterie.parts import always, as_trained, one_model

ct_fit = ct.Fit()

def plain(fit=ct_fit, strength: float = 0.0):
    """Average everything, as FedAvg does."""
    return ct.Algorithm(start=one_model(), task=always(ct.Task(fit=(fit,))), assign=as_trained())

def slower(factor: float = 2.0):
    """Divide the learning rate."""
    return lambda algorithm: replace(algorithm, task=lambda state: replace(
        algorithm.task(state),
        fit=tuple(replace(fit, lr=(fit.lr or 0.1) / factor) for fit in algorithm.task(state).fit)))

def in_turn(*, every: int = 1):
    """Deal examples in turn."""
    def divide(data, clients, rng):
        rows = [np.arange(i, len(data.y_train), clients) for i in range(clients)]
        test = [np.arange(i, len(data.y_test), clients) for i in range(clients)]
        return Shares(tuple(map(Share, rows, test)), groups=np.arange(clients) % 2)
    return divide

def fewer(share: float = 0.5):
    """Keep a share of every client's train examples."""
    def change(data, shares, rng):
        kept = (replace(each, train=each.train[: int(len(each.train) * share)]) for each in shares.clients)
        return replace(shares, clients=tuple(kept))
    return change

def toy(size: int = 40):
    """Points left and right of zero."""
    x = np.linspace(-1, 1, 3 * size, dtype=np.float32).reshape(size, 3)
    y = (x[:, 0] > 0).astype(np.int64)
    return ct.Dataset("toy", x, y, x, y, classes=2)

def owned():
    """The same, of two owners."""
    data = toy(40)
    owners = Owners(("ann", "bob"), np.arange(40) % 2, np.arange(40) % 2)
    return replace(data, owners=owners)

def halves():
    """Two clusters: the first half of the clients and the second."""
    return lambda distances, clusters, seed: (np.arange(len(distances)) >= len(distances) / 2).astype(int)

def nothing():
    """Return nothing of use."""
    return 3

def broken(fit=ct_fit):
    """Fail."""
    raise RuntimeError("no such luck")

value = 5
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's in the current folder, which is not on the path."""
    (tmp_path / "our_parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", str(tmp_path))])
    yield tmp_path
    sys.modules.pop("our_parts", None)


@pytest.fixture
def call(own):
    def run(*words):
        done = CliRunner().invoke(app, list(words))
        return done.exit_code, done.stdout, done.stderr

    return run


@pytest.fixture
def tiny():
    return ct.load("digits").partition("rotation(0,180)", clients=4, seed=1)


def test_an_algorithm_of_the_users_is_named_by_its_module_and_arguments(own):
    made = build_algorithm("our_parts:plain(strength=0.5)+our_parts:slower(factor=4)+finetune", fit=ct.Fit(steps=2))
    assert made.name == "our_parts:plain(strength=0.5)+our_parts:slower(factor=4)+finetune"
    assert made.fit.steps == 2
    assert made.task(None).fit[0].lr == pytest.approx(0.1 / 4)


def test_it_runs_as_the_method_that_it_is(own, tiny):
    theirs, ours = (
        ct.run(build_algorithm(text, fit=ct.Fit(steps=2)), tiny, "mlp(4)", rounds=2)
        for text in ("our_parts:plain", "fedavg")
    )
    assert np.array_equal(theirs.state.stack.params, ours.state.stack.params)


def test_the_command_line_runs_compares_resumes_and_assigns(call, own):
    common = ("--data", "our_parts:toy(60)", "--partition", "our_parts:in_turn+our_parts:fewer(0.5)", "--clients", "4")
    common += ("--model", "mlp(4)", "--quiet")
    code, printed, problem = call("run", "our_parts:plain", *common, "--rounds", "2", "--out", "run", "--json")
    assert (code, problem) == (0, "")
    assert json.loads(printed)["algorithm"] == "our_parts:plain"
    assert json.loads(printed)["partition"] == "our_parts:in_turn+our_parts:fewer"
    code, printed, problem = call("run", "run/config.toml", "--rounds", "3", "--out", "more", "--quiet", "--json")
    assert (code, json.loads(printed)["rounds"]) == (0, 3), problem
    assert call("run", "our_parts:plain", *common, "--rounds", "2", "--out", "run", "--resume")[0] == 0
    table = call("compare", "fedavg", "our_parts:plain", *common, "--rounds", "2", "--seeds", "1", "--out", "both")
    assert table[0] == 0
    assert "our_parts:plain" in table[1]
    assert load_trained(own / "run").assign(np.zeros((5, 3)), np.zeros(5, int)).cluster == 0


def test_list_shows_a_function_of_the_users(call):
    assert call("list", "our_parts:slower")[1].split("\n\n")[:2] == [
        "our_parts:slower(factor=2.0)",
        "Divide the learning rate.\n",
    ]
    code, printed, _ = call("list", "coterie.client_functions:label_counts")
    assert (code, "its array is of shape (classes)" in printed) == (0, True)


def test_data_with_owners_have_their_clients(call):
    words = ("run", "fedavg", "--data", "our_parts:owned", "--model", "mlp(4)", "--rounds", "1", "--quiet", "--json")
    code, printed, problem = call(*words, "--out", "owned")
    assert (code, problem) == (0, "")
    assert (json.loads(printed)["partition"], json.loads(printed)["clients"]) == ("natural", 2)


def test_a_clusterer_of_the_users_clusters(own, tiny):
    algorithm = build_algorithm("briggs(warmup=0)", fit=ct.Fit(steps=1))
    assert clusterers.build("our_parts:halves")(np.ones((4, 4)) - np.eye(4), ct_key()).tolist() == [0, 0, 1, 1]
    done = ct.run(build_algorithm("lcfl(warmup=0,clusterer=our_parts:halves)", fit=ct.Fit(steps=1)), tiny, rounds=2)
    assert done.labels.tolist() == [0, 0, 1, 1]
    assert algorithm.name == "briggs(warmup=0)"


def ct_key():
    from coterie.seeding import Key

    return Key(1, 0)


@pytest.mark.parametrize(
    ("build", "text", "problem"),
    [
        (
            build_algorithm,
            "our_parts:nothing",
            r"our_parts:nothing gives a int; a method must return a coterie.Algorit",
        ),
        (build_algorithm, "our_parts:broken", r"algorithm 'our_parts:broken' fails: RuntimeError: no such luck"),
        (
            build_algorithm,
            "our_parts:plain(strenth=1)",
            r"argument of our_parts:plain 'strenth'; did you mean 'strength'",
        ),
        (build_algorithm, "our_parts:plain(strength=high)", r"strength is high; it must be a number"),
        (build_algorithm, "our_parts:plan", r"'our_parts' has no function 'plan' for algorithm 'our_parts:plan'"),
        (build_algorithm, "our_parts:value", r"'our_parts' has no function 'value'"),
        (build_algorithm, "no_parts_here:plain", r"cannot import 'no_parts_here' of algorithm.*PYTHONPATH"),
        (
            build_algorithm,
            "fedavg+our_parts:nothing",
            r"our_parts:nothing gives a int; an add-on must return a function",
        ),
        (
            parse_partition,
            "our_parts:nothing",
            r"nothing gives a int; it must return a function \(data, clients, rng\)",
        ),
        (
            parse_partition,
            "iid+our_parts:nothing",
            r"nothing gives a int; it must return a function \(data, shares, rng\)",
        ),
        (
            clusterers.build,
            "our_parts:nothing",
            r"clusterer 'our_parts:nothing' gives a int; it must return a Clusterer",
        ),
        (
            ct.load,
            "our_parts:nothing",
            r"data 'our_parts:nothing' is a int; the function must return a coterie.Dataset",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(own, build, text, problem):
    with pytest.raises(UsageError, match=problem) as refused:
        build(text)
    assert "\n" not in str(refused.value)


def test_a_file_in_the_current_folder_hides_no_installed_package(own):
    (own / "json.py").write_text("def dumps(value):\n    return 'ours'\n")
    assert find_outside("model", "json:dumps")([1]) == "[1]"


def test_a_name_with_a_colon_is_outside():
    assert is_outside("package.module:function")
    assert not is_outside("fedavg")


def test_a_method_decorated_in_a_module_has_the_modules_name(own, monkeypatch):
    monkeypatch.syspath_prepend(str(own))
    module = __import__("our_parts")
    from coterie.parts import method

    assert method(module.plain)(strength=0.25).name == "our_parts:plain(strength=0.25)"
