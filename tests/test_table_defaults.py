"""Tables are trained with defaults of their own; what is given wins, and other data keep theirs."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import tomli_w

import coterie as ct
from coterie.data.named import is_tables
from coterie.experiments.settings import Settings, load_settings, make_settings
from coterie.experiments.table_defaults import TABLES, with_table_defaults


@pytest.fixture
def tables(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("bern", "chur"):
        x = rng.normal(size=60)
        pl.DataFrame({"x": x, "y": x**2}).write_csv(tmp_path / f"{name}.csv")
    return tmp_path


def trained_as_tables(settings: Settings) -> bool:
    return all(getattr(settings, name) == value for name, value in TABLES.items())


def test_tables_are_known_by_their_files(tmp_path, tables):
    assert is_tables(str(tables))
    assert is_tables(str(tables / "bern.csv"))
    (tmp_path / "arrays").mkdir()
    np.savez(tmp_path / "arrays" / "bern.npz", x=np.zeros(2))
    assert not is_tables(str(tmp_path / "arrays"))
    assert not is_tables("digits")
    assert not is_tables("fars")
    assert not is_tables("somewhere/absent")


def test_a_person_who_gives_nothing_gets_the_defaults_of_tables(tables):
    assert trained_as_tables(make_settings({"algorithm": "fedavg", "data": str(tables)}))


@pytest.mark.parametrize("data", ["digits", "federation", "fars"])
def test_other_data_keep_the_general_defaults(data):
    found = make_settings({"algorithm": "fedavg", "data": data})
    assert found == Settings("fedavg", data=data)


def test_a_federation_of_tables_is_trained_like_tables():
    assert trained_as_tables(make_settings({"algorithm": "fedavg", "data": "federation"}, tables=True))


def test_a_paper_keeps_its_settings(tables):
    found = make_settings({"algorithm": "fedavg", "data": str(tables), "as": "thesis"})
    assert (found.optimizer, found.batch, found.steps, found.model) == ("sgd", 32, 10, None)


@pytest.mark.parametrize("name", TABLES)
def test_what_is_given_wins(name):
    other = {"model": "mlp", "optimizer": "sgd", "lr": 0.3, "lr_decay": 0.5, "weight_decay": 0.1}.get(name, 7)
    assert with_table_defaults({name: other})[name] == other


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        ({"steps": 5}, {"epochs"}),
        ({"epochs": 5}, {"steps"}),
        ({"optimizer": "sgd"}, {"lr", "lr_decay", "weight_decay"}),
        ({"momentum": 0.5}, {"optimizer", "lr", "lr_decay", "weight_decay"}),
        ({"momentum_kept": True}, {"optimizer", "lr", "lr_decay", "weight_decay"}),
        ({"lr": 0.01}, set()),
    ],
)
def test_what_belongs_to_what_is_given_is_not_that_of_tables(given, left_out):
    assert set(TABLES) - set(with_table_defaults(given)) == left_out - set(given)
    Settings("fedavg", **{**with_table_defaults(given)})


def test_python_trains_tables_like_the_command_line():
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    clients = ct.from_frame(pl.DataFrame({"x": x, "y": x**2, "site": ["a", "b"] * 60}), client="site", label="y")
    run = ct.run("fedavg", clients, rounds=2)
    assert (run.settings.optimizer, run.settings.batch, run.settings.lr) == ("adam", TABLES["batch"], TABLES["lr"])
    assert run.settings.model.startswith("tabular")
    arrays = ct.from_arrays({"a": (x[:, None], x), "b": (x[:, None], x)})
    assert ct.run("fedavg", arrays, rounds=1).settings.optimizer == "sgd"


@pytest.fixture
def clients():
    x = np.random.default_rng(0).normal(size=80)
    return ct.from_frame(pl.DataFrame({"x": x, "y": x**2, "site": ["a", "b"] * 40}), client="site", label="y")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ct.fedavg(), "fedavg"),
        (ct.fedprox(0.1), "fedprox(0.1)"),
        (ct.wecfl(clusters=2) + ct.cks(strength=0.1) + ct.finetune(), "wecfl(clusters=2)+cks(strength=0.1)+finetune"),
        (ct.vote("fedavg", "ifca", clusters=2), "vote(fedavg,ifca,clusters=2)"),
        (ct.ifca(clusters="auto"), "ifca(clusters=auto)"),
    ],
)
def test_a_value_is_trained_like_its_text(clients, value, text):
    given = {"rounds": 2, "references": False}
    one, other = ct.run(value, clients, **given), ct.run(text, clients, **given)
    names = [name for name in TABLES if name != "rounds"]
    assert [getattr(one.settings, name) for name in names] == [getattr(other.settings, name) for name in names]
    assert one.history[-1]["test_loss"] == other.history[-1]["test_loss"]


def test_a_value_with_a_training_of_its_own_keeps_it(clients):
    algorithm = ct.fedavg(fit=ct.Fit(steps=3, lr=0.05)) + ct.finetune()
    found = ct.run(algorithm, clients, references=False).settings
    assert (found.optimizer, found.steps, found.batch, found.lr) == ("sgd", 3, 32, 0.05)
    assert (found.model[:7], found.rounds) == ("tabular", TABLES["rounds"])


def test_in_a_comparison_values_and_texts_are_trained_alike(clients):
    networks = ct.compare([ct.fedavg(), "fedprox"], clients, seeds=1, rounds=1).summaries
    assert {summary["model"].partition("(")[0] for each in networks.values() for summary in each} == {"tabular"}


def test_a_run_that_was_begun_with_the_general_defaults_is_resumed_with_them(tables, tmp_path):
    before = Settings("fedavg", data=str(tables), model="mlp(64)", lr=0.1)
    path = tmp_path / "config.toml"

    facts = {**before.table(), "made_by": {"format": 1}, "examples": {}}
    path.write_text(tomli_w.dumps(facts))
    again = load_settings(path, {})
    assert (again.steps, again.epochs, again.batch, again.optimizer) == (10, None, 32, "sgd")


def test_the_defaults_learn_what_ten_steps_of_sgd_do_not():
    rng = np.random.default_rng(0)
    month, hour = rng.integers(1, 13, 4000), rng.uniform(0, 24, 4000)
    late = rng.normal(size=13)[month] * np.sin(hour * np.pi / 12)
    frame = pl.DataFrame({"month": month, "hour": hour, "late": late, "site": ["a", "b"] * 2000})
    clients = ct.from_frame(frame, client="site", label="late")
    general = {"optimizer": "sgd", "steps": 10, "batch": 32, "model": "mlp(64)", "rounds": 20}
    before, after = ct.run("fedavg", clients, **general), ct.run("fedavg", clients)
    assert 1 - after.summary["r2"] < (1 - before.summary["r2"]) / 5
