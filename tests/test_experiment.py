"""Runs, run folders, resuming, comparing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import _fresh, app
from coterie.errors import UnknownName, UsageError
from coterie.experiments import run_folder
from coterie.experiments.records import uniform_test
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import RunFolder, load_state
from coterie.experiments.settings import Settings, load_settings
from coterie.server.serving import evaluate

SMALL = {"clients": 12, "clusters": 2, "partition": "rotation(0,180)", "steps": 2}


def settings(**changes):
    return Settings(**{"algorithm": "wecfl", "rounds": 6, **SMALL, **changes})


def timeless(records):
    return [{k: v for k, v in r.items() if k != "seconds"} for r in records]


@pytest.fixture(scope="module")
def unbroken():
    return run_settings(settings())


def test_a_run_folder_holds_what_is_promised(tmp_path):
    run = run_settings(settings(), tmp_path / "run")
    folder = tmp_path / "run"
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["model"] == "mlp(64)"
    assert config["lr"] == 0.1
    assert config["made_by"]["torch"]
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == list(range(6))
    promised = "accuracy macro_f1 worst clusters moved ari ami completeness purity loss bytes_down bytes_up seconds"
    assert set(promised.split()) <= records[-1].keys()
    labels = np.load(folder / "labels.npy", allow_pickle=False)
    assert labels.shape == (6, 12)
    assert labels[-1].tolist() == run.state.labels.tolist()
    summary = json.loads((folder / "summary.json").read_text())
    promised = (
        "algorithm data partition clients clusters_found rounds seed accuracy accuracy_last3 macro_f1 macro_f1_last3 "
        "worst_client ari ami completeness purity mean_ari mean_ami mean_completeness pf1 gf1 gap rounds_to bytes_down "
        "bytes_up seconds client_steps_per_second peak_memory_mb"
    )
    assert set(promised.split()) <= summary.keys()
    assert summary["accuracy_last3"] == pytest.approx(np.mean([r["accuracy"] for r in records[-3:]]))


def test_a_run_repeats_from_its_own_config(tmp_path, unbroken):
    run_settings(settings(), tmp_path / "run")
    again = run_settings(load_settings(tmp_path / "run" / "config.toml", {}))
    assert timeless(again.history) == timeless(unbroken.history)


def test_a_state_survives_saving_and_loading(tmp_path):
    run = run_settings(settings(algorithm="fedopt(server=yogi)"), tmp_path / "run")
    loaded = load_state(tmp_path / "run" / "state.safetensors")
    np.testing.assert_array_equal(loaded.stack.params, run.state.stack.params)
    np.testing.assert_array_equal(loaded.moments["second"], run.state.moments["second"])
    np.testing.assert_array_equal(loaded.previous.params, run.state.previous.params)
    assert loaded.round == run.state.round


@pytest.mark.parametrize("algorithm", ["wecfl", "ifca", "fedopt", "local"])
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(tmp_path, algorithm):
    whole = run_settings(settings(algorithm=algorithm))
    run_settings(settings(algorithm=algorithm, rounds=3), tmp_path / "run")
    resumed = run_settings(settings(algorithm=algorithm), tmp_path / "run", resume=True)
    assert timeless(resumed.history) == timeless(whole.history)
    np.testing.assert_array_equal(resumed.state.stack.params, whole.state.stack.params)


def flags(out, *more):
    given = ["--clients", "12", "--clusters", "2", "--partition", "rotation(0,180)", "--steps", "2", "--rounds", "40"]
    return ["run", "wecfl", *given, "--out", str(out), "--quiet", *more]


def command(out):
    return [sys.executable, "-m", "coterie", *flags(out)]


def interrupted(out, how):
    """A program started in the background may ignore Ctrl-C; this one must not."""

    def hear():
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command(out), stdout=nowhere, stderr=nowhere, preexec_fn=hear)  # noqa: PLW1509
    deadline = time.monotonic() + 60
    while not (out / "rounds.jsonl").exists() or len((out / "rounds.jsonl").read_text().splitlines()) < 3:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(how)
    return process.wait(timeout=60)


@pytest.fixture(scope="module")
def whole():
    """The run of ``flags`` that nobody stops."""
    return run_settings(settings(rounds=40))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_mid_run_and_resumed_gives_the_same_numbers(tmp_path, how, whole):
    code = interrupted(tmp_path / "run", how)
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert not (tmp_path / "run" / "summary.json").exists()
    resumed = CliRunner().invoke(app, flags(tmp_path / "run", "--resume"))
    assert resumed.exit_code == 0, resumed.output
    final = load_state(tmp_path / "run" / "state.safetensors")
    np.testing.assert_array_equal(final.stack.params, whole.state.stack.params)
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert timeless(records) == timeless(whole.history)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, unbroken):
    out = tmp_path / "run"
    run_settings(settings(rounds=4), out)
    content = bytearray((out / "state.safetensors").read_bytes())
    content[-100] ^= 1
    (out / "state.safetensors").write_bytes(content)
    resumed = run_settings(settings(), out, resume=True)
    assert timeless(resumed.history) == timeless(unbroken.history)


def test_a_damaged_checkpoint_is_removed_so_that_it_cannot_replace_the_sound_one(tmp_path, unbroken):
    out = tmp_path / "run"
    run_settings(settings(rounds=4), out)
    (out / "state.safetensors").write_bytes(b"damaged")
    assert RunFolder(out).resume().round == 3
    assert not (out / "state.safetensors").exists()
    assert timeless(run_settings(settings(), out, resume=True).history) == timeless(unbroken.history)


def test_ctrl_c_while_a_round_is_evaluated_loses_only_that_round(tmp_path, monkeypatch, unbroken):
    evaluations = []

    def stop(*words, **more):
        evaluations.append(words)
        if len(evaluations) == 3:
            raise KeyboardInterrupt
        return evaluate(*words, **more)

    monkeypatch.setattr("coterie.experiments.session.evaluate", stop)
    with pytest.raises(KeyboardInterrupt):
        run_settings(settings(checkpoint_every=5), tmp_path / "run")
    assert load_state(tmp_path / "run" / "state.safetensors").round == 2
    resumed = run_settings(settings(checkpoint_every=5), tmp_path / "run", resume=True)
    assert timeless(resumed.history) == timeless(unbroken.history)


def test_a_kill_at_any_step_of_a_checkpoint_loses_nothing_that_a_resumed_run_does_not_repeat(tmp_path, monkeypatch):
    """The folder is copied before every step, as a kill would leave it, while the next round trains."""
    whole, copies = run_settings(settings(rounds=4)), []

    def copying(step):
        def copy_first(*words):
            copies.append(shutil.copytree(tmp_path / "run", tmp_path / f"copy-{len(copies)}"))
            return step(*words)

        return copy_first

    with monkeypatch.context() as patched:
        for name in ("fsync", "replace"):
            patched.setattr(os, name, copying(getattr(os, name)))
        run_settings(settings(rounds=4), tmp_path / "run")
    assert len(copies) > 4 * 6
    begun = [copy for copy in copies if (copy / "config.toml").exists()]
    assert {round_in(copy) for copy in begun} == {None, 1, 2, 3, 4}
    for copy in begun:
        resumed = run_settings(settings(rounds=4), copy, resume=True, data=whole.data)
        assert timeless(resumed.history) == timeless(whole.history)
        np.testing.assert_array_equal(resumed.state.stack.params, whole.state.stack.params)


def round_in(folder):
    states = [folder / name for name in ("state.safetensors", "state.before.safetensors")]
    return next((load_state(state).round for state in states if state.exists()), None)


def test_a_run_goes_on_while_its_checkpoint_is_written(tmp_path, monkeypatch):
    shown, waited, pack = threading.Event(), [], run_folder.pack_state

    def pack_late(state, kept):
        waited.append(shown.wait(timeout=30))
        return pack(state, kept)

    monkeypatch.setattr(run_folder, "pack_state", pack_late)
    run_settings(settings(rounds=2), tmp_path / "run", progress=lambda record: shown.set())
    assert waited == [True, True]
    assert load_state(tmp_path / "run" / "state.safetensors").round == 2


def test_a_checkpoint_is_on_disk_before_the_next_is_begun_and_before_the_run_ends(tmp_path, monkeypatch):
    log, write = [], run_folder.write_atomically

    def write_slowly(path, content):
        if path.name == "state.safetensors":
            log.append("begins")
            time.sleep(0.2)
        write(path, content)
        if path.name in ("state.safetensors", "summary.json"):
            log.append(path.name)

    monkeypatch.setattr(run_folder, "write_atomically", write_slowly)
    run_settings(settings(rounds=3), tmp_path / "run")
    assert log == [*("begins", "state.safetensors") * 3, "summary.json"]


@pytest.mark.parametrize("failing", [1, 3])
def test_a_checkpoint_that_cannot_be_written_ends_the_run_with_its_error(tmp_path, monkeypatch, failing):
    """The last of three as well, after which nothing else is written."""
    pack = run_folder.pack_state

    def fail(state, kept):
        if state.round == failing:
            raise OSError(28, "No space left on device")
        return pack(state, kept)

    monkeypatch.setattr(run_folder, "pack_state", fail)
    with pytest.raises(OSError, match="No space left"):
        run_settings(settings(rounds=3), tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()
    monkeypatch.undo()
    resumed = run_settings(settings(rounds=3), tmp_path / "run", resume=True)
    assert timeless(resumed.history) == timeless(run_settings(settings(rounds=3)).history)


def test_a_half_written_last_line_is_left_out(tmp_path, unbroken):
    out = tmp_path / "run"
    run_settings(settings(rounds=4), out)
    with (out / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "accu')
    assert timeless(run_settings(settings(), out, resume=True).history) == timeless(unbroken.history)


def test_checkpoints_may_be_rare(tmp_path, unbroken):
    out = tmp_path / "run"
    run_settings(settings(rounds=5, checkpoint_every=2), out)
    (out / "state.safetensors").unlink()
    os.rename(out / "state.before.safetensors", out / "state.safetensors")
    resumed = run_settings(settings(checkpoint_every=2), out, resume=True)
    assert timeless(resumed.history) == timeless(unbroken.history)


def test_evaluating_rarely_changes_nothing_else_and_keeps_the_last_three(unbroken):
    rare = run_settings(settings(eval_every=100))
    assert ["accuracy" in r for r in rare.history] == [False, False, False, True, True, True]
    assert rare.summary["accuracy_last3"] == unbroken.summary["accuracy_last3"]


def test_the_python_api_is_as_promised():
    clients = ct.load("digits").partition("rotation(0,180)", clients=12, seed=1)
    run = ct.run(ct.wecfl(clusters=2), clients, model="mlp", rounds=3, seed=1)
    assert run.summary["ari"] == 1.0
    assert run.labels.shape == (12,)
    x, y = clients.test.of(3)
    assert run.model_for(3)(torch.from_numpy(x)).shape == (len(y), 10)


def test_a_run_from_python_records_what_it_did(tmp_path):
    clients = ct.load("digits").partition("rotation(0,180)", clients=12, seed=1)
    fit = ct.Fit(steps=3, lr=0.05, batch=16)
    run = ct.run(ct.wecfl(clusters=2, shots=2, fit=fit), clients, "mlp(5)", rounds=3, out=tmp_path / "run")
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    wanted = {
        "algorithm": "wecfl(clusters=2,shots=2)",
        "model": "mlp(5)",
        "clients": 12,
        "lr": 0.05,
        "steps": 3,
        "batch": 16,
    }
    assert wanted.items() <= config.items()
    again = run_settings(load_settings(tmp_path / "run" / "config.toml", {}))
    assert timeless(again.history) == timeless(run.history)


def test_options_that_run_does_not_take_are_refused():
    clients = ct.load("digits").partition("iid", clients=4, seed=1)
    with pytest.raises(UsageError, match="the algorithm is a value and has it already; set it in its fit"):
        ct.run(ct.fedavg(), clients, lr=0.5)


def test_a_validation_split_is_evaluated_and_taken_from_train():
    run = run_settings(settings(validation=0.2))
    assert 0.5 < run.summary["validation_accuracy"] <= 1
    assert run.data.validation.sizes.sum() + run.data.train.sizes.sum() == 2 * 1438


def test_general_f1_is_that_of_the_served_models_on_one_uniform_test(unbroken):
    uniform = uniform_test(unbroken.data)
    held = np.bincount(unbroken.data.test.y)
    assert held.sum() < 1000  # so all of them are taken, and a class has as many as there are
    np.testing.assert_array_equal(np.bincount(uniform.y), held)
    found = []
    for client in range(12):
        guess = ct.Run(unbroken).model_for(client)(torch.from_numpy(uniform.x)).argmax(1).numpy()
        found.append(f1_score(uniform.y, guess, average="macro"))
    assert unbroken.history[-1]["gf1"] == pytest.approx(np.mean(found))


def test_the_uniform_test_has_a_thousand_examples_and_as_many_of_each_class(images):
    data = images(sizes=(1400, 1200))
    assert np.bincount(data.test.y).min() > 250
    assert np.bincount(uniform_test(data).y).tolist() == [250] * 4


def test_model_for_serves_the_clients_cluster():
    clients = ct.load("digits").partition("rotation(0,180)", clients=12, seed=1)
    run = ct.run(ct.wecfl(clusters=2), clients, rounds=5)
    right = 0
    for client in range(12):
        x, y = clients.test.of(client)
        right += int((run.model_for(client)(torch.from_numpy(x)).argmax(1).numpy() == y).sum())
    assert right / len(clients.test.y) == pytest.approx(run.summary["accuracy"])
    assert str(run.model_for(clients.names[3])) == str(run.model_for(3))
    for nobody in ("client-99", 12, -1):
        with pytest.raises(UnknownName, match="unknown client"):
            run.model_for(nobody)


def test_regression_runs_from_a_folder_to_a_summary(tmp_path):
    rng = np.random.default_rng(0)
    for name, slope in (("a", 1.0), ("b", 1.0), ("c", -1.0), ("d", -1.0)):
        x = rng.normal(size=(60, 3)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=slope * x[:, 0] + 0.01 * rng.normal(size=60))
    run = run_settings(Settings("ifca", data=str(tmp_path), model="linear", clusters=2, rounds=10, lr=0.05))
    assert run.summary["rmse"] < 0.1
    assert run.summary["r2"] > 0.98
    labels = run.state.labels
    assert labels[0] == labels[1] != labels[2] == labels[3]
    single = run_settings(Settings("fedavg", data=str(tmp_path), model="linear", rounds=10, lr=0.05))
    assert single.summary["rmse"] > 0.8


def invoke(*words):
    return CliRunner().invoke(app, list(words))


COMPARE = ("--clients", "12", "--clusters", "2", "--partition", "rotation(0,180)", "--rounds", "3", "--steps", "2")


def test_compare_skips_what_is_done_and_shows_the_same_table(tmp_path):
    words = ("compare", "fedavg", "wecfl", *COMPARE, "--seeds", "1,2", "--out", str(tmp_path / "c"))
    first = invoke(*words)
    assert first.exit_code == 0, first.output
    assert (tmp_path / "c" / "comparison.png").stat().st_size > 10_000
    stamp = (tmp_path / "c" / "wecfl" / "seed-2" / "rounds.jsonl").stat().st_mtime_ns
    second = invoke(*words)
    assert second.stdout == first.stdout
    assert (tmp_path / "c" / "wecfl" / "seed-2" / "rounds.jsonl").stat().st_mtime_ns == stamp
    assert "local" in first.stdout
    assert "majority" in first.stdout


def test_compare_never_takes_the_results_of_other_settings(tmp_path):
    words = ("compare", "fedavg", "--no-local", "--quiet", *COMPARE, "--out", str(tmp_path / "c"), "--seeds")
    assert invoke(*words, "1").exit_code == 0
    for change in (("--lr", "0.01"), ("--clients", "10"), ("--batch", "9"), ("--rounds", "2"), ("--model", "mlp(9)")):
        result = invoke(*words, "1", *change)
        assert result.exit_code == 2, change
        assert "another --out" in result.stderr
    assert invoke(*words, "1,2", "--rounds", "4").exit_code == 0


def test_compare_uses_the_same_draw_and_start_for_all(tmp_path):
    found = invoke("compare", "fedavg", "fedprox(strength=0)", *COMPARE, "--seeds", "1", "--json", "--quiet",
                   "--no-local", "--out", str(tmp_path / "c"))  # fmt: skip
    table = json.loads(found.stdout)
    assert table["fedavg"][0]["accuracy"] == table["fedprox(strength=0)"][0]["accuracy"]


def test_json_prints_the_summary_alone(tmp_path):
    result = invoke("run", "fedavg", *COMPARE, "--json", "--out", str(tmp_path / "r"))
    assert json.loads(result.stdout)["algorithm"] == "fedavg"
    assert "round 3/3" in result.stderr


def test_flags_override_an_experiment_file(tmp_path):
    (tmp_path / "e.toml").write_text("algorithm = 'fedavg'\nrounds = 9\nclients = 12\nsteps = 1\n")
    out = str(tmp_path / "r")
    result = invoke("run", str(tmp_path / "e.toml"), "--rounds", "2", "--json", "--quiet", "--out", out)
    assert json.loads(result.stdout)["rounds"] == 2
    assert json.loads(result.stdout)["clients"] == 12


def test_a_run_without_out_gets_a_new_folder_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert invoke("run", "fedavg", *COMPARE, "--quiet").exit_code == 0
    assert len(list((tmp_path / "runs").glob("**/summary.json"))) == 2


def test_the_first_free_folder_is_taken_and_the_newest_run_is_resumed(tmp_path, monkeypatch):
    """A folder without a run in it is free, whatever else it holds."""
    monkeypatch.chdir(tmp_path)
    first = _fresh(Settings("fedavg"), resume=True)
    for name in ("", "-2", "-4", "-11"):
        first.with_name(first.name + name).mkdir(parents=True)
    for taken, free in (("", "-2"), ("-4", "-2"), ("-11", "-2"), ("-2", "-3")):
        (first.with_name(first.name + taken) / "config.toml").touch()
        assert _fresh(Settings("fedavg"), resume=False).name == first.name + free
    assert _fresh(Settings("fedavg"), resume=True).name == f"{first.name}-11"


@pytest.mark.parametrize("name", ["", "algorithms", "data", "partitions", "models", "clusterers", "wecfl", "dirichlet"])
def test_list_shows_catalogues_and_entries(name):
    result = invoke("list", *filter(None, [name]))
    assert result.exit_code == 0
    words = {"": "lenet", "algorithms": "fedprox", "data": "cifar-10", "partitions": "rotation", "models": "lenet",
             "clusterers": "kmeans", "wecfl": "shots=none", "dirichlet": "groups=10"}  # fmt: skip
    assert words[name] in result.stdout


def test_data_show_counts_every_example():
    result = invoke("data", "show", "digits", "--partition", "iid", "--clients", "5")
    assert result.exit_code == 0
    assert "client-0" in result.stdout
    assert "5 clients, 1438 train, 359 test" in result.stdout


def test_data_fetch_of_the_embedded_set_needs_nothing():
    assert "digits is ready" in invoke("data", "fetch", "digits").stdout
