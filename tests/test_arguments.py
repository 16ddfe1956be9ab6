"""Arguments of other types, or with other names, are one line in Python, as they are on the command line."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest

import coterie as ct
from coterie.arguments import checked
from coterie.errors import CoterieError, UnknownName, UsageError

FEW = {"rounds": 2, "steps": 2, "batch": 8}
FRAME = pl.DataFrame(
    {"age": [31, 47, 52, 38] * 5, "site": ["bern", "chur"] * 10, "ill": ["yes", "no", "no", "yes"] * 5}
)


@pytest.fixture(scope="module")
def clients():
    return ct.load("digits").partition("iid", clients=4, seed=1)


@pytest.fixture(scope="module")
def run(clients):
    return ct.run("fedavg", clients, "mlp(4)", **FEW)


OPTIONS = {
    "rounds": ("3", "rounds is '3'; it must be a whole number"),
    "seed": ("a", "seed is 'a'; it must be a whole number, such as 1"),
    "participation": ("half", "participation is 'half'; it must be a number, such as 1.0"),
    "lr": ("0.1", "lr is '0.1'; it must be a number"),
    "until": (5, "until is 5; it must be a text"),
    "out": (5, "out is 5; it must be a text or a path"),
    "batch": (2.5, "batch is 2.5; it must be a whole number, such as 32"),
    "threads": (1.5, "threads is 1.5; it must be a whole number"),
    "references": ("no", "references is 'no'; it must be true or false"),
    "resume": ("yes", "resume is 'yes'; it must be true or false"),
    "model": ("", "model is ''; name one, such as mlp(64), or leave it out"),
    "metric": (5, "metric is 5; it must be a text"),
    "track": (5, "track is 5; it must be a text"),
    "join": ({"bern": "1"}, "join is {'bern': '1'}; it must be a text or a table of whole numbers"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_another_type_is_refused_before_a_run(name, clients):
    value, line = OPTIONS[name]
    with pytest.raises(CoterieError) as caught:
        ct.run("fedavg", clients, **{name: value})
    assert str(caught.value) == line


@pytest.mark.parametrize(("name", "value"), [("rounds", 2.7), ("seed", 1.5), ("seed", None), ("rounds", True)])
def test_a_fraction_or_nothing_is_no_whole_number(name, value, clients):
    with pytest.raises(UsageError, match=f"{name} is {value}; it must be a whole number") as caught:
        ct.run("fedavg", clients, seed=value) if name == "seed" else ct.compare(["fedavg"], clients, rounds=value)
    assert "\n" not in str(caught.value)


def test_to_resume_needs_a_folder(clients):
    with pytest.raises(UsageError, match="resume is True, but no folder is named; give that of the run as out="):
        ct.run("fedavg", clients, resume=True)


def test_numbers_of_numpy_and_torch_are_numbers_also_in_a_saved_run(clients, tmp_path):
    import torch

    given = {"rounds": np.int64(1), "steps": torch.tensor(1), "lr": np.float32(0.5), "references": np.bool_(False)}
    done = ct.run("fedavg", clients, "mlp(4)", out=tmp_path / "run", **given)
    assert (done.settings.rounds, done.settings.steps, done.settings.lr) == (1, 1, 0.5)
    assert ct.load_run(tmp_path / "run").settings.lr == 0.5


WRONG = {
    "a share in words": (
        lambda: ct.from_frame(FRAME, client="site", label="ill", test="0.2"),
        "test is '0.2'; it must",
    ),
    "a column for its name": (
        lambda: ct.from_frame(FRAME, client=FRAME["site"], label="ill"),
        "client is a Series; it must be a text",
    ),
    "a number for a label": (lambda: ct.from_frame(FRAME, client="site", label=5), "label is 5; it must be a text"),
    "a number for columns": (lambda: ct.from_frame(FRAME, client="site", ignore=5), "ignore is 5; it must be a list"),
    "clients in words": (lambda: ct.load("digits").partition("iid", clients="4"), "clients is '4'; it must be a whole"),
    "a number for a path": (lambda: ct.load_own(5), "path is 5; it must be a text or a path"),
    "steps in words": (lambda: ct.Fit(steps="3"), "steps is '3'; it must be a whole number"),
    "a rate in words": (lambda: ct.Fit(lr="0.1"), "lr is '0.1'; it must be a number"),
    "shots in words": (lambda: ct.wecfl(2, shots="3"), "shots is '3'; it must be a whole number"),
    "a strength in words": (lambda: ct.cks(strength="0.1"), "strength is '0.1'; it must be a number"),
    "a misspelt argument": (
        lambda: ct.wecfl(cluster=2),
        "unknown argument of wecfl 'cluster'; did you mean 'clusters'? known: ",
    ),
    "a misspelt argument of an add-on": (
        lambda: ct.cks(strenght=0.1),
        "unknown argument of cks 'strenght'; did you mean 'strength'? known: ",
    ),
    "too many arguments": (
        lambda: ct.cks(*range(20)),
        "cks: too many positional arguments; its arguments are strength",
    ),
    "an add-on in words": (
        lambda: ct.wecfl(2) + "cks",
        "what is added to wecfl(clusters=2) is a str; add an add-on, such as ct.cks(strength=0.1), or give all in one "
        "text, 'wecfl(clusters=2)+cks(strength=0.1)'",
    ),
    "an algorithm added to one": (
        lambda: ct.wecfl(2) + ct.ifca(2),
        "what is added to wecfl(clusters=2) is a Algorithm",
    ),
}


@pytest.mark.parametrize(("call", "line"), WRONG.values(), ids=WRONG)
def test_an_argument_of_another_type_or_name_is_one_line(call, line):
    with pytest.raises(CoterieError, match=re.escape(line)) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("over", "line"),
    [
        ("lr", "over is 'lr'; give names with the values to try, such as {'lr': [0.01, 0.1]}"),
        ({"lr": 0.1}, "the values of lr to try are 0.1; give a list, such as [0.1]"),
    ],
)
def test_what_is_searched_is_a_mapping_to_lists(over, line, clients):
    with pytest.raises(UsageError) as caught:
        ct.tune("fedavg", clients, "mlp(4)", over=over)
    assert str(caught.value) == line


@pytest.mark.parametrize("use", ["predict", "assign"])
def test_examples_are_numbers(use, run):
    def with_x(x):
        return run.predict(x, client=0) if use == "predict" else run.assign(x)

    with pytest.raises(CoterieError, match=r"x (is|holds) .*; give an array of"):
        with_x("new.csv")
    with pytest.raises(CoterieError, match="x holds <U1, not numbers"):
        with_x(np.array([["a", "b"]]))
    with pytest.raises(CoterieError, match="x cannot be read as an array"):
        with_x([[1.0], [2.0, 3.0]])


def test_a_client_is_a_whole_number_or_a_name(run):
    with pytest.raises(UsageError, match=r"client is 1.0; it must be a whole number or a text"):
        run.model_for(1.0)
    with pytest.raises(
        UnknownName, match=r"unknown argument of predict 'probe'; did you mean 'proba'\? known: client,"
    ):
        run.predict(run.data.test.x[:1], client=0, probe=True)


def test_annotations_that_cannot_be_resolved_declare_nothing():
    def brew(cups: Kettle):  # noqa: F821
        return cups

    assert checked(brew)("3") == "3"
