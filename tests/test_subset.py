"""Some of the classes of a data set: which a text names, what is left, and that everything else honours it."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.data.dataset import Owners, read_classes
from coterie.errors import DataError, UnknownName, UsageError
from coterie.experiments.building import build_data
from coterie.experiments.settings import Settings

LETTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


def made(y, names=(), owners=None, classes=None):
    """Examples whose one feature is their row, so that it is seen which of them are left."""
    y, x = np.asarray(y), np.arange(float(len(y)))[:, None]
    return ct.Dataset("toy", x, y, x, y, classes or len(names), class_names=tuple(names), owners=owners)


@pytest.mark.parametrize(
    ("text", "names", "wanted"),
    [
        ("a..j", LETTERS, list(range(36, 46))),
        ("0..4", LETTERS, [0, 1, 2, 3, 4]),
        ("7, 1,3", LETTERS, [1, 3, 7]),
        ("A,a", LETTERS, [10, 36]),
        ("0..2,9", tuple("0123456789"), [0, 1, 2, 9]),
        ("coat,bag", ("shirt", "coat", "bag"), [1, 2]),
        ("0..1", ("shirt", "coat", "bag"), [0, 1]),
        ("0..1,1..2", (), [0, 1, 2]),
    ],
)
def test_classes_are_named_as_the_data_name_them(text, names, wanted):
    assert read_classes(text, made([0, 1], names, classes=len(names) or 3)) == wanted


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a..j", "unknown class of toy 'a'"),
        ("0..3", "unknown class of toy '3'"),
        ("", "unknown class of toy ''"),
        ("2..0", r"0 stands before 2 in toy; write 0\.\.2"),
        ("1", "is one class; name at least two"),
        ("-1..1", "unknown class of toy '-1'"),
    ],
)
def test_classes_that_are_not_there_are_refused_in_one_line(text, problem):
    with pytest.raises(UsageError, match=problem):
        made([0, 1, 2], classes=3).only(text)


def test_a_name_that_is_nearly_right_is_offered():
    with pytest.raises(UnknownName, match="did you mean 'coat'"):
        made([0, 1], ("coat", "bag")).only("coats,bag")


def test_examples_of_the_named_classes_stay_and_labels_are_numbered_anew():
    left = made([3, 0, 1, 3, 2, 1], ("ape", "bat", "cat", "dog")).only("bat,dog")
    assert left.x_train.ravel().tolist() == [0, 2, 3, 5]
    assert left.y_train.tolist() == left.y_test.tolist() == [1, 0, 1, 0]
    assert left.class_names == ("bat", "dog")
    assert left.classes == 2
    assert left.notes == ("only the classes bat,dog: 2 of 4",)


def test_owners_keep_what_is_theirs_and_those_with_too_few_examples_are_left_out_with_a_note():
    y = [0, 1, 0, 1, 2, 2, 2, 0, 2, 1, 1, 0]
    whose = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    left = made(y, tuple("abc"), Owners(("ann", "bob", "cat"), whose, whose)).only("a,b")
    assert left.owners.names == ("ann", "cat"), "bob has one example of a or b, and needs two to train on"
    clients = left.partition()
    assert clients.names == ("ann", "cat")
    assert [clients.train.of(i)[0].ravel().tolist() for i in range(2)] == [[0, 1, 2, 3], [9, 10, 11]]
    assert [clients.train.of(i)[1].tolist() for i in range(2)] == [[0, 1, 0, 1], [1, 1, 0]]
    assert clients.notes[-1] == "clients left out, with too few examples of these classes: 1"


def test_what_is_left_of_nobody_is_refused():
    whose = np.array([0, 1, 2, 0])
    with pytest.raises(DataError, match="has no example of them to train or test on"):
        made([0, 1, 2, 2], tuple("abc"), Owners(("ann", "bob", "cat"), whose, whose)).only("a,b")


def test_numbers_as_targets_and_tables_have_no_classes_to_choose(tmp_path):
    x = np.zeros((4, 1))
    with pytest.raises(DataError, match="numbers as targets"):
        ct.Dataset("toy", x, x[:, 0], x, x[:, 0], None).only("0,1")
    (tmp_path / "all.csv").write_text("u,label\n" + "\n".join(f"{i},{i % 3}" for i in range(40)))
    for how, problem in ({"partition": "iid"}, "a table of yours"), ({"client": "u"}, "has clients of its own"):
        with pytest.raises(UsageError, match=problem):
            build_data(Settings("fedavg", data=str(tmp_path / "all.csv"), clients=2, classes="0,1", **how))


def test_a_run_on_some_classes_says_so_and_is_gone_on_with_by_the_same_words(tmp_path):
    out, runner = str(tmp_path / "run"), CliRunner()
    options = ["--classes", "3..5", "--partition", "classes(2)", "--clients", "6", "--out", out, "--json", "--quiet"]
    done = runner.invoke(app, ["run", "fedavg", *options, "--rounds", "1"])
    assert done.exit_code == 0, done.output
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert (config["classes"], config["examples"]["classes"]) == ("3..5", 3)
    assert "only the classes 3..5: 3 of 10" in json.loads(done.stdout)["notes"]
    other = runner.invoke(app, ["run", "fedavg", *options, "--rounds", "2", "--resume", "--classes", "3..6"])
    assert "was begun with classes = 3..5, not 3..6" in other.output
    clients = ct.load("digits").only("3..5").partition("classes(2)", clients=6)
    assert ct.run(ct.fedavg(), clients, rounds=2, out=out, resume=True).summary["rounds"] == 2


def test_data_show_honours_the_classes():
    shown = CliRunner().invoke(app, ["data", "show", "digits", "--classes", "1,3,7", "--clients", "4"])
    assert shown.exit_code == 0, shown.output
    assert "only the classes 1,3,7: 3 of 10" in shown.output
    assert "classes: 0 1, 1 3, 2 7" in shown.output
