"""A run that begins with the models of an earlier one: who keeps its cluster, who is placed, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.cli.options import settings_from
from coterie.data import load
from coterie.errors import CoterieError, RunFolderError, UsageError
from coterie.experiments.building import build_algorithm
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import (
    CONFIG,
    LABELS,
    PREVIOUS,
    STATE,
    SUMMARY,
    load_config,
    load_rounds,
    load_state,
)
from coterie.experiments.settings import Settings, load_settings
from coterie.experiments.warm_start import load_earlier
from coterie.protocol.stack import UNPLACED
from coterie.server.roster import with_clients

SHORT = Settings("wecfl", partition="rotation(0,180)", clients=6, clusters=2, model="mlp(8)", rounds=3, eval_every=9)


@pytest.fixture(scope="module")
def data():
    return load("digits").partition("rotation(0,180)", clients=6, seed=1)


@pytest.fixture(scope="module")
def earlier(data, tmp_path_factory):
    """A finished run of the first five of six clients."""
    folder = tmp_path_factory.mktemp("earlier") / "run"
    run_settings(SHORT, folder, data=data.select(range(5)))
    return folder


def test_models_are_taken_rounds_counted_on_and_the_folder_says_where_it_came_from(data, earlier, tmp_path):
    """A newcomer joins, one client leaves, and the others are in another order."""
    now = data.select([5, 3, 2, 1, 0])
    begun = load_earlier(earlier)
    done = run_settings(SHORT, tmp_path / "run", data=now, earlier=begun)
    assert [record["round"] for record in load_rounds(tmp_path / "run")] == [3, 4, 5]
    assert done.summary["rounds"] == 6
    began = load_config(tmp_path / "run")["began"]
    assert (began["folder"], began["round"]) == (str(earlier.resolve()), 3)
    assert (began["joined"], began["left"]) == ([data.names[5]], [data.names[4]])
    note = begun.note(now.names)
    assert note.startswith(f"begins with 2 models of {earlier.resolve()} after 3 rounds; 4 clients keep their cluster")
    assert f"new, to be placed: {data.names[5]}; left: {data.names[4]}" in note
    assert load_settings(tmp_path / "run" / "config.toml", {}).rounds == 6
    groups = now.groups.tolist()
    assert len(set(zip(done.state.labels.tolist(), groups, strict=True))) == 2, "the newcomer is with its kind"


def test_the_first_exchange_is_with_the_earlier_models_and_clusters(data, earlier):
    """With the same clients it is what one longer run would have been, bit for bit."""
    before = data.select(range(5))
    longer = run_settings(replace(SHORT, rounds=5), data=before).state
    begun = run_settings(replace(SHORT, rounds=2), data=before, earlier=load_earlier(earlier)).state
    assert begun.round == longer.round == 5
    np.testing.assert_array_equal(begun.stack.params, longer.stack.params)
    assert begun.labels.tolist() == longer.labels.tolist()


def test_costs_are_those_of_the_new_rounds_alone(data, earlier):
    before = data.select(range(5))
    one = run_settings(replace(SHORT, rounds=2), data=before, earlier=load_earlier(earlier)).summary
    cold = run_settings(replace(SHORT, rounds=2), data=before).summary
    assert one["models_down"] == cold["models_down"] == 1


def test_an_interrupted_warm_start_resumes_to_the_same_numbers(data, earlier, tmp_path):
    settings = replace(SHORT, rounds=2)
    whole = run_settings(settings, tmp_path / "whole", data=data, earlier=load_earlier(earlier)).state

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_settings(settings, tmp_path / "cut", data=data, earlier=load_earlier(earlier), progress=stop)
    run_settings(settings, tmp_path / "cut", True, data=data)
    np.testing.assert_array_equal(load_state(tmp_path / "cut" / STATE).stack.params, whole.stack.params)
    # killed before the first checkpoint: it begins with the earlier models again
    for name in (STATE, PREVIOUS, SUMMARY, LABELS):
        (tmp_path / "cut" / name).unlink(missing_ok=True)
    run_settings(settings, tmp_path / "cut", True, data=data)
    np.testing.assert_array_equal(load_state(tmp_path / "cut" / STATE).stack.params, whole.stack.params)


def test_the_config_of_a_warm_start_resumes_it_to_the_rounds_that_were_ordered(data, earlier, tmp_path):
    """Its rounds are with those of the earlier run: added to them once more, it went on too far."""
    own = run_settings(replace(SHORT, rounds=2), tmp_path / "own", data=data, earlier=load_earlier(earlier))
    assert own.state.round == load_settings(tmp_path / "own" / CONFIG, {}).rounds == 5
    assert settings_from(str(tmp_path / "own" / CONFIG), {}).rounds == 2
    told = CliRunner().invoke(app, ["run", str(tmp_path / "own" / CONFIG), "--resume", "--out", str(tmp_path / "own")])
    assert told.exit_code == 0, told.output
    assert load_state(tmp_path / "own" / STATE).round == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "mlp(9)"}, "has the model mlp(8), not mlp(9)"),
        ({"algorithm": "fedavg"}, "has the algorithm wecfl(clusters=2), not fedavg"),
        ({"clusters": 3}, "has the algorithm wecfl(clusters=2), not wecfl(clusters=3)"),
    ],
)
def test_another_model_or_algorithm_is_refused_in_one_line(data, earlier, tmp_path, change, words):
    with pytest.raises(UsageError) as refused:
        run_settings(replace(SHORT, **change), tmp_path / "run", data=data, earlier=load_earlier(earlier))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_other_examples_are_refused(data, earlier):
    two = load("digits").partition("rotation(0,180)", clients=6, seed=1)
    fewer = replace(two, classes=12)
    with pytest.raises(UsageError, match="has classes 10, not 12"):
        run_settings(SHORT, data=fewer, earlier=load_earlier(earlier))


def test_a_run_that_is_not_finished_is_none_to_begin_with(tmp_path):
    with pytest.raises(RunFolderError, match="holds no finished run"):
        load_earlier(tmp_path)


def test_local_has_no_model_for_a_newcomer(data, tmp_path):
    local = replace(SHORT, algorithm="local", clusters=None, rounds=1)
    run_settings(local, tmp_path / "run", data=data.select(range(5)))
    earlier = load_earlier(tmp_path / "run")
    with pytest.raises(UsageError, match=f"none for {data.names[5]}; begin without --from"):
        run_settings(local, data=data, earlier=earlier)
    assert run_settings(local, data=data.select([4, 0]), earlier=earlier).state.labels.tolist() == [4, 0]


METHODS = [
    "fedavg",
    "fedopt",
    "ifca",
    "joint",
    "clove",
    "lcfl",
    "ocfl-kmeans",
    "sattler(minimum=0)",
    "stocfl",
    "fedsoft",
]
METHODS += ["ifca+cam", "flux", "fedavg+finetune", "wecfl(shots=2)"]


@pytest.mark.parametrize("algorithm", METHODS)
def test_every_kind_of_method_goes_on_with_a_newcomer_and_without_one_that_left(data, tmp_path, algorithm):
    settings = replace(SHORT, algorithm=algorithm, rounds=4, participation=1.0)
    run_settings(settings, tmp_path / "run", data=data.select(range(5)))
    now = data.select([1, 5, 0, 3])
    done = run_settings(replace(settings, rounds=1), data=now, earlier=load_earlier(tmp_path / "run"))
    assert done.state.round == 5
    assert len(done.state.labels) == 4
    assert UNPLACED not in done.state.labels.tolist(), "the newcomer is placed"


def test_clients_known_by_name_keep_their_cluster_and_others_have_none(data, earlier):
    state = load_state(earlier / STATE)
    names = data.names[:5]
    found = with_clients(build_algorithm(SHORT), state, names, ("x", names[3], names[0]))
    assert found.labels.tolist() == [UNPLACED, state.labels[3], state.labels[0]]
    assert found.stack is state.stack
    with pytest.raises(CoterieError):
        load_earlier(earlier.parent)
