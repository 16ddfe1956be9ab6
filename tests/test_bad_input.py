"""What users get wrong: one line that names the value, the limit and the remedy, exit code 2, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli import app

QUICK = ("--rounds", "1", "--quiet")


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(app, list(words))

    return run


def complaint(result) -> str:
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert result.stdout == "" or not result.stdout.startswith("┏")
    return result.stderr


WRONG = {
    "an unknown algorithm": (["wecf"], ["unknown algorithm 'wecf'", "did you mean 'wecfl'"]),
    "an unknown argument": (["wecfl(shot=3)"], ["unknown argument of wecfl 'shot'", "did you mean 'shots'"]),
    "an unclosed bracket": (["wecfl(shots=3"], ["never closed"]),
    "a word after the end": (["wecfl)"], ["cannot read 'wecfl)'"]),
    "an add-on that does not exist": (["wecfl+nothing"], ["unknown add-on of an algorithm", "known: cam, cks"]),
    "an unknown layer": (["wecfl(layer=tail)"], ["unknown part of a model 'tail'"]),
    "an unknown start of ifca": (["ifca(start=middle)"], ["start is 'middle'", "farthest or random"]),
    "an unknown server optimiser": (["fedopt(server=adm)"], ["did you mean 'adam'"]),
    "a negative server rate": (["fedopt(lr=-1)"], ["the server's lr is -1", "> 0"]),
    "a negative proximal strength": (["fedprox(strength=-1)"], ["strength is -1", ">= 0"]),
    "local training in an algorithm's text": (["fedavg(fit=3)"], ["unknown argument of fedavg 'fit'"]),
    "an argument too many": (["fedavg(5)"], ["fedavg(5)", "coterie list fedavg"]),
    "shots that are no number": (["wecfl(shots=abc)"], ["shots is abc", "a whole number"]),
    "half a cluster": (["ifca(clusters=2.5)"], ["clusters is 2.5", "a whole number"]),
    "no shots": (["wecfl(shots=0)"], ["shots is 0", "at least 1"]),
    "a server rate that is no number": (["fedopt(lr=nan)"], ["lr is nan"]),
    "an impossible beta": (["fedopt(beta2=7)"], ["beta2 is 7", "[0, 1)"]),
    "no tau": (["fedopt(tau=0)"], ["tau is 0", "> 0"]),
    "more answers than are asked": (["fedavg", "--min-clients", "41"], ["min-clients is 41", "1 to 40"]),
    "no answers": (["fedavg", "--min-clients", "0"], ["min-clients is 0"]),
    "an unknown data set": (["fedavg", "--data", "digit"], ["did you mean 'digits'"]),
    "an unknown partition": (["fedavg", "--partition", "dirichle(1)"], ["did you mean 'dirichlet'"]),
    "an unknown model": (["fedavg", "--model", "mpl"], ["did you mean 'mlp'"]),
    "an unknown optimiser": (["fedavg", "--optimizer", "adm"], ["optimizer is 'adm'", "sgd or adam"]),
    "an unknown weight": (["fedavg", "--weigh-by", "size"], ["weigh-by is 'size'", "test or train"]),
    "an unknown goal": (["fedavg", "--until", "acuracy=0.9"], ["score to reach 'acuracy'", "did you mean 'accuracy'"]),
    "a goal without a number": (["fedavg", "--until", "accuracy"], ["until is 'accuracy'", "such as accuracy=0.9"]),
    "a goal in percent": (["fedavg", "--until", "accuracy=90"], ["until is 'accuracy=90'", "in (0, 1]"]),
    "an error below nothing": (["fedavg", "--until", "rmse=-1"], ["until is 'rmse=-1'", "> 0"]),
    "a goal that is no number": (["fedavg", "--until", "ari=nan"], ["until is 'ari=nan'", "in (0, 1]"]),
    "an error of classes": (["fedavg", "--until", "rmse=1"], ["digits has no such score", "accuracy or macro_f1"]),
    "an end without a goal": (["fedavg", "--stop"], ["stop is set", "add --until"]),
    "an unknown plan": (["fedavg", "--plan", "fast"], ["unknown plan 'fast'"]),
    "a device that is not there": (["fedavg", "--device", "cuda:9"], ["device 'cuda:9'", "--device cpu"]),
    "a model too large for the images": (["fedavg", "--model", "lenet"], ["(1, 8, 8)"]),
    "a model that cannot be imported": (
        ["fedavg", "--model", "nowhere:net"],
        ["cannot import 'nowhere'", "PYTHONPATH"],
    ),
    "more clients than examples": (
        ["fedavg", "--clients", "4000"],
        ["4000 clients in 4 groups", "at most 572 clients"],
    ),
    "an impossible minimum": (
        ["fedavg", "--clients", "40", "--partition", "iid(minimum=100)"],
        ["40 clients x 100 examples need 4000", "at most 14 clients"],
    ),
    "more clusters than clients (wecfl)": (["wecfl", "--clusters", "41"], ["clusters is 41 for 40 clients"]),
    "more clusters than clients (ifca)": (["ifca", "--clusters", "41"], ["clusters is 41 for 40 clients"]),
    "no cluster": (["wecfl", "--clusters", "0"], ["clusters is 0", "at least 1"]),
    "a negative rate": (["fedavg", "--lr", "-0.1"], ["lr is -0.1", "> 0"]),
    "a rate that is not a number": (["fedavg", "--lr", "nan"], ["lr is nan"]),
    "momentum of one": (["fedavg", "--momentum", "1"], ["momentum is 1.0", "[0, 1)"]),
    "negative weight decay": (["fedavg", "--weight-decay", "-1"], ["weight-decay is -1.0"]),
    "a growing learning rate": (["fedavg", "--lr-decay", "1.5"], ["lr-decay is 1.5"]),
    "an empty batch": (["fedavg", "--batch", "0"], ["batch is 0"]),
    "steps and epochs": (["fedavg", "--steps", "3", "--epochs", "1"], ["steps and epochs"]),
    "no steps": (["fedavg", "--steps", "0"], ["steps is 0"]),
    "no participants": (["fedavg", "--participation", "0"], ["participation is 0.0", "(0, 1]"]),
    "all data for validation": (["fedavg", "--validation", "1"], ["validation is 1.0", "[0, 1)"]),
    "no clients": (["fedavg", "--clients", "0"], ["clients is 0"]),
    "a negative seed": (["fedavg", "--seed", "-1"], ["seed is -1"]),
    "no threads": (["fedavg", "--threads", "0"], ["threads is 0"]),
    "a missing experiment file": (["nowhere.toml"], ["no experiment file nowhere.toml"]),
    "a missing folder": (["fedavg", "--data", "./nowhere"], ["nowhere"]),
    "an output folder that cannot be": (["fedavg", "--out", "/proc/nowhere/run"], ["cannot write to", "--out"]),
}


@pytest.mark.parametrize(("words", "fragments"), WRONG.values(), ids=WRONG)
def test_one_clear_line_for(call, tmp_path, words, fragments):
    told = complaint(call("run", *words, *QUICK))
    assert told.count("\n") == 1, told
    for fragment in fragments:
        assert fragment in told
    assert not list(tmp_path.glob("**/*.*")), "a refused request leaves nothing behind"


def test_no_rounds_is_refused(call):
    assert "rounds is 0" in complaint(call("run", "fedavg", "--rounds", "0"))


@pytest.mark.parametrize("seeds", ["", "a", "3..1", "1,1", "-1"])
def test_seeds_that_are_no_seeds(call, seeds):
    assert "1..5" in complaint(call("compare", "fedavg", "--seeds", seeds, *QUICK))


def test_an_algorithm_compared_with_itself(call):
    assert "listed twice" in complaint(call("compare", "fedavg", "fedavg", *QUICK))


def test_a_bad_algorithm_stops_a_comparison_before_it_starts(call, tmp_path):
    assert "unknown algorithm" in complaint(call("compare", "fedavg", "ifka", *QUICK))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("algorithm = ", "cannot read"),
        ("rounds = 3", "names no algorithm"),
        ("algorithm = 'fedavg'\nround = 3", "did you mean 'rounds'"),
        ("algorithm = 'fedavg'\nrounds = 'three'", "rounds is 'three'"),
        ("algorithm = 'fedavg'\nrounds = true", "rounds is True"),
    ],
)
def test_a_bad_experiment_file(call, tmp_path, text, fragment):
    (tmp_path / "bad.toml").write_text(text)
    assert fragment in complaint(call("run", "bad.toml"))


def write(folder, name, **arrays):
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"x": np.full((20, 3), np.nan)}, ["b", "NaN"]),
        ({"x": np.full((20, 3), np.inf)}, ["b", "infinite"]),
        ({"y": np.full(20, -1)}, ["b", "-1"]),
        ({"y": np.zeros(19, int)}, ["b", "20", "19"]),
        ({"x": np.zeros((20, 4))}, ["b", "(4,)", "(3,)"]),
        ({"y": np.full(20, 10**6)}, ["hospitals", "1000000", "number them from 0"]),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, ["b"]),
        ({"x": np.array([{}] * 20, dtype=object)}, ["b"]),
    ],
)
def test_a_bad_client_file_is_named(call, tmp_path, change, fragments):
    good = {"x": np.random.default_rng(0).normal(size=(20, 3)), "y": np.arange(20) % 2}
    write(tmp_path / "hospitals", "a", **good)
    write(tmp_path / "hospitals", "b", **{**good, **change})
    told = complaint(call("run", "fedavg", "--data", "./hospitals", *QUICK))
    for fragment in fragments:
        assert fragment in told


def test_one_class_is_nothing_to_learn(call, tmp_path):
    for name in "ab":
        write(tmp_path / "hospitals", name, x=np.random.default_rng(0).normal(size=(20, 3)), y=np.zeros(20, int))
    assert "the one class 0" in complaint(call("run", "fedavg", "--data", "./hospitals", *QUICK))


@pytest.mark.parametrize("flag", [("--clients", "3"), ("--partition", "iid")])
def test_a_folder_is_not_dealt_out_again(call, tmp_path, flag):
    for name in "ab":
        write(tmp_path / "hospitals", name, x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)
    assert "leave it out" in complaint(call("run", "fedavg", "--data", "./hospitals", *flag, *QUICK))


def test_a_refused_comparison_can_be_corrected_in_the_same_folder(call):
    words = ("compare", "wecfl", "--clients", "8", "--no-local", "--seeds", "1", *QUICK)
    assert "clusters is 9 for 8" in complaint(call(*words, "--clusters", "9"))
    assert call(*words, "--clusters", "2").exit_code == 0


def test_an_existing_run_is_never_overwritten(call, tmp_path):
    assert call("run", "fedavg", "--out", "once", *QUICK).exit_code == 0
    before = (tmp_path / "once" / "summary.json").read_bytes()
    assert "--resume" in complaint(call("run", "fedavg", "--out", "once", *QUICK))
    assert (tmp_path / "once" / "summary.json").read_bytes() == before


def test_a_run_is_not_resumed_with_other_settings(call):
    assert call("run", "fedavg", "--out", "once", *QUICK).exit_code == 0
    told = complaint(call("run", "fedavg", "--out", "once", "--resume", "--lr", "0.5", *QUICK))
    assert "begun with lr = 0.1, not 0.5" in told
    told = complaint(call("run", "fedavg", "--out", "once", "--resume", "--epochs", "2", *QUICK))
    assert "begun with epochs = None, not 2" in told


def test_a_damaged_checkpoint_without_another_is_an_error(call, tmp_path):
    assert call("run", "fedavg", "--out", "once", *QUICK).exit_code == 0
    state = tmp_path / "once" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-4] + b"\x00\x01\x02\x03")
    (tmp_path / "once" / "summary.json").unlink()
    assert "damaged" in complaint(call("run", "fedavg", "--out", "once", "--resume", *QUICK))


def test_an_internal_error_is_one_line_and_exit_1(call, monkeypatch):
    monkeypatch.setattr("coterie.cli.run_settings", lambda *a: 1 / 0)
    result = call("run", "fedavg", *QUICK)
    assert result.exit_code == 1
    assert "internal error: ZeroDivisionError" in result.stderr
