"""The library as Python sees it: its names, what a run gives back, and how a run is gone on with."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.errors import FederationError, RunFolderError
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.summary import load_rows
from coterie.runtimes.simulator import Simulator
from coterie.server.serving import evaluate

MODULES = [found.name for found in pkgutil.iter_modules(ct.__path__)]


def digits(clients=6, seed=1, **options):
    return ct.load("digits").partition("rotation(0,180)", clients=clients, seed=seed, **options)


def timeless(run):
    """The records of a run without the time that they took."""
    return [{k: v for k, v in record.items() if k != "seconds"} for record in getattr(run, "history", run)]


@pytest.mark.parametrize("name", MODULES)
def test_no_name_of_the_library_hides_one_of_its_modules(name):
    module = importlib.import_module(f"coterie.{name}")
    assert getattr(ct, name) is module


def test_every_public_name_is_there():
    assert [name for name in ct.__all__ if not hasattr(ct, name)] == []
    assert not set(ct.__all__) & set(MODULES)


def test_the_package_of_algorithms_can_be_imported_and_the_catalogue_has_a_name_of_its_own():
    import coterie.algorithms as package

    assert package.wecfl is ct.wecfl
    assert ct.methods.find("wecfl") is ct.wecfl


def test_python_goes_on_with_a_run_that_was_stopped(tmp_path):
    clients = digits()
    whole = ct.run(ct.wecfl(clusters=2), clients, rounds=4)
    ct.run(ct.wecfl(clusters=2), clients, rounds=2, out=tmp_path / "run")
    resumed = ct.run(ct.wecfl(clusters=2), clients, rounds=4, out=tmp_path / "run", resume=True)
    assert timeless(resumed) == timeless(whole)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (ct.wecfl(clusters=2), ["wecfl", "--clusters", "2"]),
        (ct.wecfl(clusters=2, shots=1), ["wecfl(2, shots=1)"]),
        (ct.ifca(clusters=2, choose="race", fit=ct.Fit(lr=0.1)), ["ifca", "--clusters", "2", "--choose", "race"]),
        (ct.joint(clusters=2), ["joint", "--clusters", "2", "--steps", "7"]),
        (ct.fedavg(ct.Fit(epochs=1, batch=16)), ["fedavg", "--epochs", "1", "--batch", "16"]),
        (ct.fedavg(ct.Fit(steps=10)), ["fedavg", "--clusters", "3"]),
        (ct.wecfl(clusters=2) + ct.cks(0.2) + ct.finetune(), ["wecfl+cks(strength=0.2)+finetune", "--clusters", "2"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("begun", ["in Python", "on the command line"])
def test_the_command_line_goes_on_with_pythons_run_and_python_with_its(algorithm, words, begun, tmp_path):
    out, rounds = tmp_path / "run", {"in Python": (1, 2), "on the command line": (2, 1)}[begun]

    def python(number):
        return ct.run(algorithm, digits(validation=0.2), "mlp", rounds=number, out=out, resume=True)

    def command_line(number):
        options = ["--partition", "rotation(0, 180)", "--clients", "6", "--validation", "0.2", "--model", "mlp"]
        settled = [*options, "--rounds", str(number), "--out", str(out), "--resume", "--json", "--quiet"]
        told = CliRunner().invoke(app, ["run", *words, *settled])
        assert told.exit_code == 0, told.output

    for step in (python, command_line) if begun == "in Python" else (command_line, python):
        step(rounds[0] if step is python else rounds[1])
    whole = ct.run(algorithm, digits(validation=0.2), "mlp", rounds=2)
    assert timeless(load_rounds(out)) == timeless(whole.history)


def test_own_tables_are_gone_on_with_from_either_side(tmp_path):
    for name in "abcd":
        rows = "\n".join(f"{i % 7},{i % 3},{i % 2}" for i in range(30))
        (tmp_path / "here").mkdir(exist_ok=True)
        (tmp_path / "here" / f"{name}.csv").write_text(f"u,v,sick\n{rows}\n")
    clients = ct.load_own(tmp_path / "here", label="sick", ignore=["v"], test=0.3)
    ct.run("fedavg", clients, rounds=1, out=tmp_path / "run")
    words = ["fedavg", "--data", f"{tmp_path}/run/../here", "--label", "sick", "--ignore", "v", "--test", "0.3"]
    done = CliRunner().invoke(app, ["run", *words, "--rounds", "2", "--out", str(tmp_path / "run"), "--resume"])
    assert done.exit_code == 0, done.output
    assert ct.run("fedavg", clients, rounds=3, out=tmp_path / "run", resume=True).summary["rounds"] == 3


def test_data_without_words_are_gone_on_with_in_python_and_the_command_line_says_so(tmp_path, images):
    out = tmp_path / "run"
    ct.run(ct.fedavg(), images(), "mlp", rounds=1, out=out)
    again = ct.run(ct.fedavg(), images(), "mlp", rounds=2, out=out, resume=True)
    assert timeless(again) == timeless(ct.run(ct.fedavg(), images(), "mlp", rounds=2))
    for target in ("fedavg", str(out / "config.toml")):
        told = CliRunner().invoke(app, ["run", target, "--out", str(out), "--resume"])
        assert told.exit_code == 2
        assert "in Python on data that no setting names" in told.stderr
        assert told.stderr.count("\n") == 1


@pytest.mark.parametrize("other", [{"seed": 2}, {"clients": 5}, {"validation": 0.1}])
def test_other_data_than_those_of_the_run_are_refused(other, tmp_path):
    ct.run(ct.fedavg(), digits(), rounds=1, out=tmp_path / "run")
    with pytest.raises(RunFolderError, match="was begun"):
        ct.run(ct.fedavg(), digits(**other), rounds=2, out=tmp_path / "run", resume=True)


def test_another_algorithm_than_that_of_the_run_is_refused(tmp_path):
    ct.run(ct.wecfl(clusters=2), digits(), rounds=1, out=tmp_path / "run")
    for other in (ct.wecfl(clusters=3), ct.wecfl(clusters=2) + ct.cks(), ct.wecfl(clusters=2, fit=ct.Fit(steps=9))):
        with pytest.raises(RunFolderError, match="was begun with"):
            ct.run(other, digits(), rounds=2, out=tmp_path / "run", resume=True)


@pytest.fixture(scope="module")
def finished():
    return ct.run(ct.wecfl(clusters=2) + ct.cks(strength=0.2), digits(), rounds=2)


def test_what_python_shows_of_a_run_is_one_short_line_that_says_something(finished):
    simulator = Simulator(finished.data, finished.model)
    replies = evaluate(finished.results.trained.algorithm, simulator, finished.state, seed=1)
    about = {
        repr(finished): (
            "wecfl(clusters=2)+cks(strength=0.2)",
            "digits",
            "rotation(0,180)",
            "6 clients",
            "2 rounds",
            "accur",
        ),
        repr(finished.state): ("2 rounds", "2 models", "4,810 parameters", "6 clients"),
        repr(finished.data): (
            "digits",
            "rotation(0,180)",
            "6 clients",
            "2876 train",
            "718 test",
            "(1, 8, 8)",
            "10 classes",
        ),
        repr(finished.data.train): ("2876", "(1, 8, 8)", "6 clients"),
        repr(finished.results.trained): ("wecfl(clusters=2)+cks(strength=0.2)", "mlp(64)", "6 clients", "2 rounds"),
        repr(finished.model): ("mlp(64)", "(1, 8, 8)", "10 classes"),
        repr(finished.results.trained.algorithm): ("wecfl(clusters=2)+cks(strength=0.2)",),
        repr(replies): ("6 clients", "0 are missing", "metrics"),
        repr(ct.load("digits")): ("digits", "1438 train", "359 test", "10 classes"),
    }
    for shown, words in about.items():
        assert len(shown) < 200
        assert "\n" not in shown
        assert [word for word in words if word not in shown] == []


@pytest.mark.parametrize(
    "text",
    [
        "wecfl+finetune",
        "ifca(fresh=true)",
        "ifca(fresh=true)+finetune(steps=3)",
        "fedavg-ensemble(members=2)+finetune",
        "ifca+cam+finetune",
        "vote(fedavg,wecfl)",
        "local",
    ],
)
def test_the_model_that_is_handed_over_is_the_one_that_was_scored(text, tmp_path):
    clients = ct.load("digits").partition("rotation(0,180)", clients=6, seed=1)
    algorithm = ct.build_algorithm(text, 2, ct.Fit(steps=3))
    run = ct.run(algorithm, clients, rounds=2, out=tmp_path / "run", join={"client-001": 1}, leave={"client-002": 1})
    for client, row in enumerate(load_rows(tmp_path / "run")):
        x, y = clients.test.of(client)
        guess = run.model_for(client)(torch.from_numpy(x)).argmax(-1).numpy()
        assert client == 2 or float(row["accuracy"]) == np.mean(guess == y)
    assert row["accuracy"] != "", "somebody was tested"


def test_who_had_left_is_handed_over_what_it_would_have_been_served(tmp_path):
    clients, algorithm = digits(), ct.fedavg(ct.Fit(steps=3))
    run = ct.run(algorithm + ct.finetune(), clients, rounds=2, leave={"client-002": 1}, out=tmp_path / "run")
    assert load_rows(tmp_path / "run")[2]["accuracy"] == ""
    tested = evaluate(
        run.results.trained.algorithm, Simulator(clients, run.model), run.state, seed=1, clients=np.array([2])
    )
    x, y = clients.test.of(2)
    guess = run.model_for(2)(torch.from_numpy(x)).argmax(-1).numpy()
    assert np.mean(guess == y) == tested.metrics[0, 0]


def test_a_client_that_diverges_while_it_is_fine_tuned_has_no_model():
    wild = ct.fedavg(ct.Fit(steps=1, lr=1e9)) + ct.finetune(steps=50)
    clients = digits()
    run = ct.run(ct.fedavg(ct.Fit(steps=1)), clients, rounds=1)
    broken = replace(run, results=replace(run.results, trained=replace(run.results.trained, algorithm=wild)))
    with pytest.raises(FederationError, match=r"client 'client-000' has no model"):
        broken.model_for(0)


def test_a_client_that_chooses_again_before_its_test_is_handed_over_what_it_chose(tmp_path):
    clients, algorithm = digits(), ct.ifca(clusters=2, fresh=True, fit=ct.Fit(steps=3))
    run = ct.run(algorithm, clients, rounds=1, participation=0.5, out=tmp_path / "run")
    assert (run.labels < 0).sum() == 3, "three clients were never asked, so they have no cluster yet"
    for client, row in enumerate(load_rows(tmp_path / "run")):
        x, y = clients.test.of(client)
        guess = run.model_for(client)(torch.from_numpy(x)).argmax(-1).numpy()
        assert float(row["accuracy"]) == np.mean(guess == y)


def test_the_fingerprint_knows_the_same_data_again_and_no_others():
    def moved(by):
        data = digits()
        return replace(data, train=replace(data.train, x=data.train.x + np.float32(by)))

    assert digits().fingerprint() == digits().fingerprint() == moved(1e-7).fingerprint()
    others = [
        moved(0.5),
        digits(seed=2),
        digits(clients=5),
        digits(validation=0.1),
        digits().select([1, 0, 2, 3, 4, 5]),
    ]
    assert len({other.fingerprint() for other in (digits(), *others)}) == 6
