"""What users get wrong: one line that names the value, the limit and the remedy, exit code 2, nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli.main import app

QUICK = ("--rounds", "1", "--quiet")
HUGE = "1" + 30 * "0"


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        return CliRunner().invoke(app, list(words))

    return run


def complaint(result) -> str:
    """The one line that a refused request is answered with."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    return result.stderr


def everything_in(folder):
    """All that is below a folder: files with their content, and folders."""
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture
def refused(call, tmp_path):
    """Call for something wrong: nothing is made or changed by that, and there is one line about it."""

    def run(*words):
        before = everything_in(tmp_path)
        told = complaint(call(*words))
        assert everything_in(tmp_path) == before, "a refused request leaves nothing behind"
        return told

    return run


WRONG = {
    "an unknown algorithm": (["wecf"], ["unknown algorithm 'wecf'", "did you mean 'wecfl'"]),
    "an unknown argument": (["wecfl(shot=3)"], ["unknown argument of wecfl 'shot'", "did you mean 'shots'"]),
    "an unclosed bracket": (["wecfl(shots=3"], ["cannot read 'wecfl(shots=3'", "a '(' is never closed"]),
    "a word after the end": (["wecfl)"], ["cannot read 'wecfl)' at ')'", "expected '+' or the end"]),
    "an add-on that does not exist": (
        ["wecfl+nothing"],
        ["unknown add-on of an algorithm 'nothing'", "known: cam, cks"],
    ),
    "an unknown layer": (["wecfl(layer=tail)"], ["unknown part of a model 'tail'", "known: all, body"]),
    "an unknown start of ifca": (["ifca(start=middle)"], ["start is 'middle'; it must be farthest or random"]),
    "an unknown server optimiser": (["fedopt(server=adm)"], ["unknown server optimiser 'adm'", "did you mean 'adam'"]),
    "a negative server rate": (["fedopt(lr=-1)"], ["the server's lr is -1; it must be > 0"]),
    "a negative proximal strength": (["fedprox(strength=-1)"], ["strength is -1; it must be >= 0"]),
    "local training in an algorithm's text": (["fedavg(fit=3)"], ["unknown argument of fedavg 'fit'"]),
    "an argument too many": (["fedavg(5)"], ["fedavg(5): too many positional arguments", "`coterie list fedavg`"]),
    "shots that are no number": (["wecfl(shots=abc)"], ["wecfl(shots=abc): shots is abc; it must be a whole number"]),
    "half a cluster": (["ifca(clusters=2.5)"], ["ifca(clusters=2.5): clusters is 2.5; it must be a whole number"]),
    "no shots": (["wecfl(shots=0)"], ["shots is 0; it must be at least 1"]),
    "a server rate that is no number": (["fedopt(lr=nan)"], ["fedopt(lr=nan): lr is nan; it must be a number"]),
    "an impossible beta": (["fedopt(beta2=7)"], ["the server's beta2 is 7; it must be in [0, 1)"]),
    "no tau": (["fedopt(tau=0)"], ["the server's tau is 0; it must be > 0"]),
    "more answers than are asked": (["fedavg", "--min-clients", "41"], ["min-clients is 41", "1 to 40"]),
    "no answers": (["fedavg", "--min-clients", "0"], ["min-clients is 0; it must be at least 1"]),
    "an unknown data set": (["fedavg", "--data", "digit"], ["unknown data 'digit'", "did you mean 'digits'"]),
    "an unknown partition": (
        ["fedavg", "--partition", "dirichle(1)"],
        ["unknown partition 'dirichle'", "did you mean 'dirichlet'"],
    ),
    "an unknown model": (["fedavg", "--model", "mpl"], ["unknown model 'mpl'", "did you mean 'mlp'"]),
    "an unknown optimiser": (["fedavg", "--optimizer", "adm"], ["optimizer is 'adm'", "sgd or adam"]),
    "an unknown weight": (["fedavg", "--weigh-by", "size"], ["unknown weigh-by 'size'", "known: test, train"]),
    "an unknown goal": (["fedavg", "--until", "acuracy=0.9"], ["score to reach 'acuracy'", "did you mean 'accuracy'"]),
    "a goal without a number": (["fedavg", "--until", "accuracy"], ["until is 'accuracy'", "such as accuracy=0.9"]),
    "a goal in percent": (["fedavg", "--until", "accuracy=90"], ["until is 'accuracy=90'", "in (0, 1]"]),
    "an error below nothing": (["fedavg", "--until", "rmse=-1"], ["until is 'rmse=-1'", "> 0"]),
    "a goal that is no number": (["fedavg", "--until", "ari=nan"], ["until is 'ari=nan'", "in (0, 1]"]),
    "an error of classes": (["fedavg", "--until", "rmse=1"], ["digits has no such score", "accuracy or macro_f1"]),
    "an end without a goal": (["fedavg", "--stop"], ["stop is set", "add --until"]),
    "an unknown plan": (["fedavg", "--plan", "fast"], ["unknown plan 'fast'"]),
    "a device that is not there": (
        ["fedavg", "--device", "cuda:9"],
        ["device 'cuda:9' cannot be used here", "use --device cpu"],
    ),
    "a device that keeps no numbers": (
        ["fedavg", "--device", "meta"],
        ["device 'meta' cannot be used here", "use --device cpu"],
    ),
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
    "more clusters than clients (wecfl)": (
        ["wecfl", "--clusters", "41"],
        ["clusters is 41 for 40 clients", "between 1 and 40"],
    ),
    "more clusters than clients (ifca)": (
        ["ifca", "--clusters", "41"],
        ["clusters is 41 for 40 clients", "between 1 and 40"],
    ),
    "no cluster": (["wecfl", "--clusters", "0"], ["clusters is 0; it must be at least 1"]),
    "a negative rate": (["fedavg", "--lr", "-0.1"], ["lr is -0.1; it must be a number > 0"]),
    "a rate that is not a number": (["fedavg", "--lr", "nan"], ["lr is nan; it must be a number > 0"]),
    "momentum of one": (["fedavg", "--momentum", "1"], ["momentum is 1.0; it must be in [0, 1)"]),
    "negative weight decay": (["fedavg", "--weight-decay", "-1"], ["weight-decay is -1.0; it must be >= 0"]),
    "a growing learning rate": (["fedavg", "--lr-decay", "1.5"], ["lr-decay is 1.5; it must be in (0, 1]"]),
    "an empty batch": (["fedavg", "--batch", "0"], ["batch is 0; it must be at least 1"]),
    "no steps": (["fedavg", "--steps", "0"], ["steps is 0; it must be at least 1"]),
    "no participants": (["fedavg", "--participation", "0"], ["participation is 0.0; it must be in (0, 1]"]),
    "all data for validation": (["fedavg", "--validation", "1"], ["validation is 1.0; it must be in [0, 1)"]),
    "no clients": (["fedavg", "--clients", "0"], ["clients is 0; it must be at least 1"]),
    "a negative seed": (["fedavg", "--seed", "-1"], ["seed is -1; it must be at least 0"]),
    "no threads": (["fedavg", "--threads", "0"], ["threads is 0; it must be between 1 and"]),
    "a missing experiment file": (
        ["nowhere.toml"],
        ["no experiment file nowhere.toml", "name an algorithm or an existing .toml file"],
    ),
    "a missing folder": (
        ["fedavg", "--data", "./nowhere"],
        ["there is no file or folder nowhere; name a folder that holds a .npz"],
    ),
    "steps without end": (["fedavg", "--steps", HUGE], ["steps is 1e+30; it must be at most 1,000,000", "more rounds"]),
    "epochs without end": (["fedavg", "--epochs", HUGE], ["epochs is 1e+30; it must be at most 100,000"]),
    "a pass without end": (
        ["fedavg", "--steps", "1000000", "--batch", "1000"],
        [
            "sees in 1,000,000 minibatches of 1000 is ",
            "at most 50,000,000: take fewer steps or epochs, and more rounds",
        ],
    ),
    "rounds without end": (["fedavg", "--rounds", HUGE], ["rounds is 1e+30; it must be at most 1,000,000: lower it"]),
    "clients without end": (["fedavg", "--clients", HUGE], ["clients is 1e+30; it must be at most 1,000,000"]),
    "a batch without end": (["fedavg", "--batch", HUGE], ["batch is 1e+30; it must be at most 1,000,000,000"]),
    "clusters without end": (["ifca", "--clusters", HUGE], ["for 40 clients; it must be between 1 and 40"]),
    "answers without end": (["fedavg", "--min-clients", HUGE], ["40 are asked in round 0, so 1 to 40"]),
    "threads without end": (["fedavg", "--threads", HUGE], ["it must be between 1 and"]),
    "a rate beyond all numbers": (["fedavg", "--lr", "1e308"], ["lr is 1e+308; it must be at most 1e+30: lower it"]),
    "an infinite rate": (["fedavg", "--lr", "inf"], ["lr is inf; it must be at most 1e+30: lower it"]),
    "a decay beyond all numbers": (
        ["fedavg", "--weight-decay", "1e300"],
        ["weight-decay is 1e+300; it must be at most"],
    ),
    "a bound beyond all numbers": (["fedavg", "--norm-bound", "1e308"], ["norm-bound is 1e+308", "0 to take all"]),
    "a server rate beyond all numbers": (["fedopt(lr=1e308)"], ["the server's lr is 1e+308; it must be at most 1e+30"]),
    "a strength beyond all numbers": (
        ["fedprox(strength=1e308)"],
        ["the proximal strength is 1e+308; it must be at most"],
    ),
    "an infinite strength": (["fedprox(strength=inf)"], ["the proximal strength is inf; it must be >= 0"]),
    "knowledge shared without end": (["wecfl+cks(1e300)"], ["the cks strength is 1e+300; it must be at most 1e+30"]),
    "no temperature to speak of": (
        ["wecfl+con-para(temperature=1e-300)"],
        ["temperature is 1e-300", "from 1e-30 to 1e+30"],
    ),
    "a long fine-tuning": (
        ["fedavg+finetune(epochs=1000000000)"],
        ["epochs is 1,000,000,000; it must be at most 100,000"],
    ),
    "a fine-tuning without end": (["fedavg+finetune(steps=1e3)"], ["steps is 1000.0; it must be a whole number"]),
    "members without end": (
        ["fedavg-ensemble(members=1000000000)"],
        ["members is 1,000,000,000; it must be at most 100"],
    ),
    "no members": (["fedavg-ensemble(members=0)"], ["members is 0; it must be at least 1"]),
    "no examples to choose by": (["ifca(examples=0)"], ["examples is 0; it must be at least 1, or none for all"]),
    "fewer than no examples": (
        ["ifca(examples=-3,choose=race)"],
        ["examples is -3; it must be at least 1, or none for all"],
    ),
    "a power beyond all numbers": (["ocfl(p=1e308)"], ["p is 1e+308; it must be at most 100: lower it"]),
    "a threshold beyond all numbers": (["sattler(eps1=1e308)"], ["eps1 is 1e+308; it must be at most 1e+30"]),
    "500 add-ons": (["wecfl" + "+cks" * 500], ["the number of add-ons is 500; it must be at most 16: leave some out"]),
    "a text without end": (
        ["wecfl(shots=" * 9000],
        ["the length of 'wecfl(shots=wecfl(sh'... is 108,000", "shorten it"],
    ),
    "brackets without end": (
        ["vote(" * 900 + ")" * 900],
        ["the depth of parentheses in 'vote(vote(vote(vote('... is 11; it must be at most 10"],
    ),
    "shots without end": ([f"wecfl(shots={HUGE})"], ["needs at least 1", "give more rounds, or lower these"]),
    "no width": (
        ["fedavg", "--model", "mlp(0)"],
        ["model 'mlp(0)' cannot be built: the width of a layer is 0; it must be from 1 to 10,000,000"],
    ),
    "less than no width": (["fedavg", "--model", "mlp(-3)"], ["the width of a layer is -3; it must be from 1 to"]),
    "a width without end": (
        ["fedavg", "--model", f"mlp({HUGE})"],
        ["the width of a layer is 1", "it must be from 1 to"],
    ),
    "more parameters than memory": (
        ["fedavg", "--model", "mlp(1000000,1000000)"],
        ["has 1,000,076,000,010 numbers", "needs about 24,001.8 GB of memory and this machine has", "a smaller one"],
    ),
    "no width of a table's net": (
        ["fedavg", "--model", "tabular(0)"],
        ["'tabular(0)' cannot be built: width is 0; it must be from 1 to"],
    ),
    "a depth without end": (
        ["fedavg", "--model", f"tabular(depth={HUGE})"],
        ["depth is 1", "it must be from 0 to 1000"],
    ),
    "all dropped": (["fedavg", "--model", "tabular(dropout=1)"], ["dropout is 1; it must be in [0, 1)"]),
    "no kernel": (["fedavg", "--model", "cnn-joint(kernel=0)"], ["kernel is 0; it must be from 1 to 1000"]),
    "an error of numbers on classes": (
        ["fedavg", "--metric", "rmse"],
        ["metric is rmse, and the data have 10 classes; take accuracy or"],
    ),
    "r2 on classes": (["fedavg", "--metric", "r2"], ["metric is r2, and the data have 10 classes; take accuracy or"]),
    "a choice that nobody knows": (["wecfl", "--choose", "fast"], ["unknown choose 'fast'", "known: exact, race"]),
    "a client that joins after the end": (
        ["fedavg", "--join", "client-003@99"],
        ["join is client-003@99, but the last round is 0", "name an earlier one, or raise rounds"],
    ),
    "a share that joins after the end": (
        ["fedavg", "--join", "0.1@1"],
        ["join is client-0", "@1, but the last round is 0"],
    ),
    "a goal out of range": (
        ["fedavg", "--metric", "auroc", "--until", "auroc=2"],
        ["until is 'auroc=2', and auroc is 0 to 1; give a number of that range"],
    ),
    "no model": (["fedavg", "--model", ""], ["model is ''; name one, such as mlp(64), or leave it out"]),
    "a path too long to write": (
        ["fedavg", "--out", "a" * 5000],
        [" ... ", "cannot be used (File name too long)", "another"],
    ),
    "a path too deep to write": (["fedavg", "--out", "a/" * 3000], ["cannot be used (File name too long)"]),
    "a path too long to read": (["fedavg", "--data", f"./{'a' * 5000}.csv"], ["cannot be used (File name too long)"]),
    "a name too long": (["fedavg", "--data", "a" * 5000], ["cannot be used (File name too long)", "name another path"]),
    "an experiment file too long": (["a" * 5000 + ".toml"], ["cannot read", "File name too long"]),
    "a word of a terminal's language": (["\x1b[31mfedavg"], ["cannot read '\\x1b[31mfedavg' at '\\x1b[31mfedavg'"]),
    "a tag that closes nothing": (
        ["fedavg", "--data", "[/x]"],
        ["error: there is no file or folder [/x]; name a folder that holds"],
    ),
    "a path of a terminal's language": (["fedavg", "--data", "./\x1b[2J\n.csv"], ["\\x1b[2J\\n.csv"]),
    "a name that is not UTF-8": (
        ["fedavg", "--data", "./\udcff.csv"],
        ["\\xff.csv: has a name that is not UTF-8; rename it"],
    ),
    "an output folder that cannot be": (
        ["fedavg", "--out", "/proc/nowhere/run"],
        ["cannot write to /proc/nowhere/run", "give another --out"],
    ),
}


@pytest.mark.parametrize(("words", "fragments"), WRONG.values(), ids=WRONG)
def test_one_clear_line_for(refused, words, fragments):
    told = refused("run", *words, *(() if "--rounds" in words else QUICK))
    for fragment in fragments:
        assert fragment in told
    assert len(told) < 1600, "a line that can be read"


def test_no_rounds_is_refused(refused):
    assert refused("run", "fedavg", "--rounds", "0") == "error: rounds is 0; it must be at least 1\n"


def test_what_was_there_stays_when_a_run_is_refused(refused, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "notes").write_text("mine")
    refused("run", "wecfl", "--clusters", "41", "--out", "runs/new/one", *QUICK)
    assert (tmp_path / "runs" / "notes").read_text() == "mine"


@pytest.mark.parametrize("seeds", ["", "a", "3..1", "1,1", "-1"])
def test_seeds_that_are_no_seeds(refused, seeds):
    told = refused("compare", "fedavg", "--seeds", seeds, *QUICK)
    assert told == f"error: seeds are {seeds!r}; write a range such as 1..5 or a list such as 1,2,7\n"


def test_seeds_without_end(refused):
    told = refused("compare", "fedavg", "--seeds", "1..1000000000000", *QUICK)
    assert told == "error: the number of seeds is 1e+12; it must be at most 10,000: lower it\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tries", HUGE], "tries is 1e+30; it must be at most 10,000: lower it"),
        (
            [word for name in ("lr", "batch", "momentum") for word in ("--over", f"{name}={','.join(['1'] * 99)}")],
            "the number of candidates is 970,299; it must be at most 10,000: list fewer values, or say how many random "
            "--tries",
        ),
    ],
)
def test_candidates_without_end(refused, words, told):
    assert refused("tune", "fedavg", *words, *QUICK) == f"error: {told}\n"


def test_an_algorithm_compared_with_itself(refused):
    told = refused("compare", "fedavg", "fedavg", *QUICK)
    assert told == "error: fedavg is listed twice; name each algorithm once\n"


def test_a_bad_algorithm_stops_a_comparison_before_it_starts(refused):
    assert "unknown algorithm 'ifka'; did you mean 'ifca'?" in refused("compare", "fedavg", "ifka", *QUICK)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("algorithm = ", "cannot read bad.toml: Invalid value (at end of document); it must be a TOML file"),
        ("rounds = 3", "bad.toml has no algorithm; add algorithm = 'wecfl'"),
        ("algorithm = 'fedavg'\nround = 3", "unknown setting in bad.toml 'round'; did you mean 'rounds'?"),
        ("algorithm = 'fedavg'\nrounds = 'x'", "bad.toml: rounds is 'x'; it must be a whole number, such as 20"),
        ("algorithm = 'fedavg'\nrounds = true", "bad.toml: rounds is True; it must be a whole number"),
    ],
)
def test_a_bad_experiment_file(refused, tmp_path, text, fragment):
    (tmp_path / "bad.toml").write_text(text)
    assert fragment in refused("run", "bad.toml")


def write(folder, name, **arrays):
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ({"x": np.full((20, 3), np.nan)}, ["b.npz: x has a NaN or infinite value in row 0", "clean or impute it"]),
        ({"x": np.full((20, 3), np.inf)}, ["b.npz: x has a NaN or infinite value in row 0", "clean or impute it"]),
        ({"y": np.full(20, -1)}, ["b.npz: y has the label -1 in row 0", "classes count from 0"]),
        ({"y": np.zeros(19, int)}, ["b.npz: has 20 examples in x but 19 in y", "save both with the same length"]),
        ({"x": np.zeros((20, 4))}, ["b.npz: has examples of shape (4,) where a.npz has (3,)", "the same features"]),
        ({"y": np.full(20, 10**6)}, ["hospitals: has the label 1000000 but only 3 classes", "number them from 0"]),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, ["b.npz: x is empty", "leave the file out"]),
        ({"x": np.array([{}] * 20, dtype=object)}, ["b.npz: holds Python objects", "numpy.savez"]),
    ],
)
def test_a_bad_client_file_is_named(refused, tmp_path, change, fragments):
    good = {"x": np.random.default_rng(0).normal(size=(20, 3)), "y": np.arange(20) % 2}
    write(tmp_path / "hospitals", "a", **good)
    write(tmp_path / "hospitals", "b", **{**good, **change})
    told = refused("run", "fedavg", "--data", "./hospitals", *QUICK)
    for fragment in fragments:
        assert fragment in told


def test_one_class_is_nothing_to_learn(refused, tmp_path):
    for name in "ab":
        write(tmp_path / "hospitals", name, x=np.random.default_rng(0).normal(size=(20, 3)), y=np.zeros(20, int))
    told = refused("run", "fedavg", "--data", "./hospitals", *QUICK)
    assert "hospitals: has the one class 0; at least 2 are needed" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fedavg", "--clients", "3"], "clients is 3, but ./hospitals holds 2; leave it out"),
        (["fedavg", "--partition", "iid"], "partition is 'iid', but ./hospitals has clients of its own; leave it out"),
        (["wecfl", "--clusters", "3"], "clusters is 3 for 2 clients; it must be between 1 and 2"),
    ],
)
def test_a_folder_has_the_clients_it_has(refused, tmp_path, words, told):
    for name in "ab":
        write(tmp_path / "hospitals", name, x=np.random.default_rng(0).normal(size=(20, 3)), y=np.arange(20) % 2)
    assert refused("run", *words, "--data", "./hospitals", *QUICK) == f"error: {told}\n"


def test_a_refused_comparison_can_be_corrected_in_the_same_folder(refused, call):
    words = ("compare", "wecfl", "--clients", "8", "--no-local", "--seeds", "1", *QUICK)
    assert "clusters is 9 for 8 clients; it must be between 1 and 8" in refused(*words, "--clusters", "9")
    assert call(*words, "--clusters", "2").exit_code == 0


def test_an_existing_run_is_never_overwritten(refused, call):
    assert call("run", "fedavg", "--out", "once", *QUICK).exit_code == 0
    told = refused("run", "fedavg", "--out", "once", *QUICK)
    assert told == "error: once already holds a run; continue it with --resume, or give another --out\n"


def test_a_run_is_not_resumed_with_other_settings(refused, call):
    assert call("run", "fedavg", "--out", "once", *QUICK).exit_code == 0
    told = refused("run", "fedavg", "--out", "once", "--resume", "--lr", "0.5", *QUICK)
    assert "begun with lr = 0.1, not 0.5" in told
    told = refused("run", "fedavg", "--out", "once", "--resume", "--epochs", "2", *QUICK)
    assert "begun with epochs = None, not 2" in told


def test_a_damaged_checkpoint_without_another_is_an_error(call, tmp_path):
    assert call("run", "fedavg", "--out", "once", *QUICK).exit_code == 0
    state = tmp_path / "once" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-4] + b"\x00\x01\x02\x03")
    (tmp_path / "once" / "summary.json").unlink()
    assert "is damaged (its hash is wrong); delete the folder and run again" in complaint(
        call("run", "fedavg", "--out", "once", "--resume", *QUICK)
    )


def test_an_internal_error_is_one_line_and_exit_1(call, monkeypatch):
    monkeypatch.setattr("coterie.experiments.run.run_settings", lambda *a, **k: 1 / 0)
    result = call("run", "fedavg", *QUICK)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "internal error: ZeroDivisionError" in result.stderr
    assert result.stderr.count("\n") == 1
