"""``data check`` thinks: leaks, row numbers, quantities taken as classes, and what each client has; no false alarms."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.data.tables.problems import Holding, Problem, alike, in_python, kind_of
from coterie.data.tables.suspicions import Column, Looked, leaks, row_numbers, small_tests, suspicions_of
from coterie.reporting.check_view import EXTREMES, extremes, holdings_table
from coterie.target import Target

OWN = {"client": "site", "label": "y"}


def rows(count=400, seed=0, sites=2):
    """Sites with an honest column ``age``, a category, and a label that both tell a little about."""
    rng = np.random.default_rng(seed)
    age = rng.integers(20, 90, count)
    sex = rng.choice(["f", "m"], count)
    ill = rng.random(count) < np.where(age > 60, 0.6, 0.3)
    return pl.DataFrame(
        {"site": [f"s{i % sites}" for i in range(count)], "age": age, "sex": sex, "y": np.where(ill, "ill", "well")}
    )


def warnings(frame, **options):
    return ct.check_own(frame, **{**OWN, **options}).warnings


def about(kind, found):
    return [each for each in found if kind in each]


class TestFalseAlarms:
    def test_honest_columns_raise_no_suspicion(self):
        assert warnings(rows()) == ()

    @settings(max_examples=8)
    @given(st.integers(0, 10_000))
    def test_whatever_the_draw(self, seed):
        assert warnings(rows(seed=seed)) == ()

    def test_a_strong_honest_column_is_only_asked_about(self):
        frame = rows(1000)
        strong = np.where(np.random.default_rng(1).random(1000) < 0.92, frame["y"] == "ill", frame["y"] != "ill")
        (found,) = warnings(frame.with_columns(score=pl.Series(strong.astype(float))))
        assert "is that known beforehand?" in found
        assert "leak" not in found

    def test_sorted_measurements_with_repeats_are_no_row_numbers(self):
        assert not about("row number", warnings(rows().sort("age")))

    def test_distinct_measurements_that_chance_explains_are_no_ids(self):
        income = np.random.default_rng(0).choice(100_000, 400, replace=False)
        assert not about("look", warnings(rows().with_columns(income=pl.Series(income))))


class TestLeaks:
    def test_a_column_that_is_the_label_in_other_words(self):
        frame = rows().with_columns(code=pl.Series(np.where(rows()["y"] == "ill", 7.5, 3.25)))
        (found,) = warnings(frame)
        assert found.startswith("column 'code' (100.0% right, guessing 5")
        assert found.endswith(
            "alone predicts the label, probably a leak: ignore='code'"
        )  # a frame's remedy is Python's

    def test_a_category_that_is_the_label(self):
        frame = rows()
        (found,) = warnings(frame.with_columns(word=frame["y"] + "-" + frame["sex"]))
        assert "'word'" in found

    def test_a_number_that_gives_a_target_away(self):
        rng = np.random.default_rng(0)
        price = rng.normal(300, 50, 400)
        frame = rows().with_columns(y=pl.Series(price), taxed=pl.Series(price * 1.08 + rng.normal(0, 0.5, 400)))
        (found,) = warnings(frame)
        assert "'taxed' (R2 0.9" in found or "'taxed' (R2 1.0" in found

    def test_a_leak_at_one_client_alone(self):
        frame = rows(800, sites=2)
        leak = np.where(
            frame["site"] == "s0", (frame["y"] == "ill").to_numpy(), np.random.default_rng(0).random(800) < 0.5
        )
        (found,) = warnings(frame.with_columns(code=pl.Series(leak.astype(int))))
        assert "column 'code' at s0 alone predicts the label" in found

    def test_too_few_rows_to_judge_by_are_not_judged(self):
        frame = rows(80)
        assert not about("leak", warnings(frame.with_columns(code=pl.Series(frame["y"]))))

    def test_rare_classes_with_too_few_cases_are_not_judged(self):
        y = np.zeros(400, np.int64)
        y[:8] = 1
        looked = Looked(
            x=y[:, None].astype(np.float32),
            y=y,
            owners=np.zeros(400, np.int64),
            clients=("a",),
            columns=(Column("code", slice(0, 1), std=1.0),),
            target=Target(2),
        )
        assert list(leaks(looked)) == []


class TestRowNumbers:
    @pytest.mark.parametrize("numbers", [np.arange(400), np.arange(400)[::-1] * 3 + 17, 10**6 + np.arange(400) ** 2])
    def test_what_rises_or_falls_with_every_row(self, numbers):
        (found,) = warnings(rows().with_columns(key=pl.Series(numbers)))
        assert found == "column 'key' looks like a row number or an id, of no use for other rows: ignore='key'"

    def test_what_is_shuffled_and_never_repeats(self):
        (found,) = warnings(rows().with_columns(key=pl.Series(np.random.default_rng(0).permutation(400))))
        assert "'key' looks like a row number or an id" in found

    def test_one_line_names_all(self):
        frame = rows().with_columns(key=pl.Series(np.arange(400)), other=pl.Series(np.arange(400) * 2))
        (found,) = warnings(frame)
        assert found.startswith("columns 'key', 'other' look like row numbers or ids")
        assert found.endswith("ignore='key,other'")

    def test_with_one_repeat_the_shuffled_ones_are_values(self):
        x = np.random.default_rng(0).permutation(400).astype(np.float32)
        x[0] = x[1]
        both = {"y": np.zeros(400, np.int64), "owners": np.zeros(400, np.int64), "clients": ("a",), "target": Target(2)}
        column = (Column("key", slice(0, 1), std=1.0),)
        assert list(row_numbers(Looked(x=x[:, None], columns=column, **both))) == []


class TestSpellings:
    @pytest.mark.parametrize(
        ("words", "what", "remedy"),
        [
            (["3,5", "4"], "numbers with a decimal comma ('3,5')", "write 1234.56"),
            (["-1.234,56", "0,5"], "numbers with a decimal comma ('-1.234,56')", "write 1234.56"),
            (["1'234.50", "2\u2019500"], 'numbers with marks between the thousands ("1\'234.50")', "write 1234.56"),
            (["1,234", "12,500.75"], "numbers with marks between the thousands ('1,234')", "write 1234.56"),
            (["CHF 500", "CHF 1'200.50"], "numbers with a unit", "write the numbers alone, such as 1234.56"),
            (["12%", "7 %"], "numbers with a unit ('12%')", "write the numbers alone, such as 1234.56"),
            (["31.12.2021", "1.2.2022"], "dates ('1.2.2022')", "write 2021-12-31"),
            (["12/31/2021", "2/1/2022"], "dates ('12/31/2021')", "write 2021-12-31"),
            (["2021/12/31", "2022/1/2 12:30"], "dates ('2021/12/31')", "write 2021-12-31"),
        ],
    )
    def test_of_numbers_and_dates_that_become_categories_are_noted(self, words, what, remedy):
        frame = rows().with_columns(x=pl.Series(words * 200))
        (told,) = about("'x'", ct.check_own(frame, **OWN).notes)
        assert told.startswith(f"column 'x' looks like {what}")
        assert told.endswith(f"is taken as a category: if it is none, {remedy}")
        assert not about("looks like", ct.check_own(frame, **OWN, categorical="x").notes)
        label = rows().with_columns(y=pl.Series(words * 200))
        assert about(f"the label 'y' looks like {what}", ct.check_own(label, **OWN).warnings)

    @pytest.mark.parametrize(
        "words",
        [
            ["red", "3,5"], ["A12", "B7"], ["1.2.10", "1.10.3"], ["8-12", "12-16"], ["32.13.2021", "40.1.2021"],
            ["gate 5", "gate 6"], ["a,b", "c,d"], ["5m ahead", "5"], ["079 123 45 67", "044 1"], ["12:30", "7:05"],
        ],
    )  # fmt: skip
    def test_of_other_words_are_not(self, words):
        frame = rows().with_columns(x=pl.Series(words * 200))
        assert not about("looks like", ct.check_own(frame, **OWN).notes)


class TestLabels:
    def test_whole_numbers_that_are_many_are_probably_a_quantity(self):
        delays = np.random.default_rng(9).integers(-60, 260, 4000)
        frame = rows(4000).with_columns(y=pl.Series(delays))
        found = ct.check_own(frame, **OWN)
        kinds = len(set(delays.tolist()))
        (told,) = about("quantity", found.warnings)
        assert told == (
            f"the label 'y' has {kinds} different whole numbers, taken as classes: if it is a quantity, "
            "use task='regression'"
        )
        assert f"task: classification, because the label 'y' has {kinds} different whole numbers" in found.lines()
        assert found.good
        declared = ct.check_own(frame, **OWN, task="regression")
        assert declared.warnings == ()
        assert declared.lines()[1] == "task: regression, as --task says"
        assert not about("quantity", ct.check_own(frame, **OWN, task="classification").warnings)

    @pytest.mark.parametrize(
        ("labels", "said"),
        [
            (["ill", "well"], "classification, because the label 'y' has 2 different words"),
            ([0, 1], "classification, because the label 'y' has 2 different whole numbers"),
            ([0.5, 1.25], "regression, because the label 'y' has numbers with decimals"),
        ],
    )
    def test_the_task_is_always_said_and_why(self, labels, said):
        frame = rows().with_columns(y=pl.Series(labels * 200))
        assert f"task: {said}" in ct.check_own(frame, **OWN).lines()

    def test_few_whole_numbers_stored_as_floats_are_probably_classes(self, tmp_path):
        frame = rows().with_columns(y=(pl.col("y") == "ill").cast(pl.Float64))
        found = ct.check_own(frame, **OWN)
        (told,) = about("if they are classes", found.warnings)
        assert told == (
            "the label 'y' has 2 different whole numbers, such as 0.0, taken as numbers to predict: if they are "
            "classes, use task='classification'"
        )
        said = found.lines()[1]
        assert said.startswith("task: regression, because the label 'y' has whole numbers stored as floats, such as ")
        for task in ("regression", "classification"):
            assert not about("if they are classes", ct.check_own(frame, **OWN, task=task).warnings)
        assert told.replace("task='classification'", "--task classification") in suspicions_of(
            ct.from_frame(frame, **OWN)
        )
        many = rows().with_columns(y=pl.col("age").cast(pl.Float64))
        assert not about("if they are classes", ct.check_own(many, **OWN).warnings)
        y = frame["y"].to_numpy()
        arrays = ct.from_arrays({"a": (np.ones((400, 1)), y), "b": (np.ones((400, 1)), y)})
        assert about("save y as whole numbers from 0", suspicions_of(arrays))

    def test_several_labels_and_targets_too(self):
        frame = rows().with_columns(a=pl.Series([0, 1] * 200), b=pl.Series([1, 0] * 200)).drop("y")
        assert "task: multilabel, because the 2 label columns hold nothing but 0 and 1" in (
            ct.check_own(frame, client="site", label="a,b").lines()
        )


class TestClients:
    def test_clients_with_few_test_rows_are_one_line(self):
        frame = pl.concat([rows(400), rows(20, seed=1).with_columns(site=pl.lit("tiny"))])
        (found,) = warnings(frame)
        assert found == "one client has fewer than 30 test rows, too few to judge a client by: tiny (4)"
        many = list(small_tests([f"c{i}" for i in range(9)], np.arange(9)))
        assert many == [
            "9 of 9 clients have fewer than 30 test rows, too few to judge a client by: "
            "c0 (0), c1 (1), c2 (2), c3 (3), c4 (4) and 4 more"
        ]

    def test_a_column_without_any_value_at_one_client(self):
        frame = rows().with_columns(age=pl.when(pl.col("site") == "s1").then(None).otherwise(pl.col("age")))
        found = ct.check_own(frame, **OWN, missing="mean")
        assert "columns without any value at a client: 'age' at s1" in found.warnings
        held = {each.client: each.missing for each in found.holdings}
        assert held == {"s0": 0.0, "s1": 0.5}

    def test_a_client_with_one_class(self):
        frame = rows().with_columns(y=pl.when(pl.col("site") == "s1").then(pl.lit("ill")).otherwise(pl.col("y")))
        assert "1 of 2 clients have a single class: s1" in warnings(frame)

    def test_what_each_client_has_is_counted_by_hand(self):
        frame = rows()
        found = ct.check_own(frame, **OWN)
        for each in found.holdings:
            own = frame.filter(pl.col("site") == each.client)
            ill = int((own["y"] == "ill").sum())
            assert each.counts == (ill, len(own) - ill)
            assert each.train + each.test == len(own)
        numbers = frame.with_columns(y=pl.col("age") + 0.5)
        for each in ct.check_own(numbers.drop("age"), **OWN).holdings:
            own = numbers.filter(pl.col("site") == each.client)["y"].to_numpy()
            assert (each.mean, each.std) == pytest.approx((own.mean(), own.std()))

    def test_of_many_clients_the_extremes_are_shown(self):
        held = [Holding(client=f"c{i}", train=100 + i, test=20, counts=(50, 50 + (i * 7) % 40)) for i in range(40)]
        shown = extremes(held)
        by_rows = sorted(held, key=lambda each: each.train)
        assert {*(each.client for each in (*by_rows[:EXTREMES], *by_rows[-EXTREMES:]))} <= {s.client for s in shown}
        assert len(shown) <= 4 * EXTREMES
        assert extremes(held[:10]) == held[:10]


class TestLines:
    def test_one_line_for_each_kind_of_problem(self):
        frame = rows().with_columns(**{f"lab{i}": pl.Series([None, *range(1, 400)]) for i in range(35)})
        found = ct.check_own(frame, **OWN)
        assert len(found.problems) == 35
        (line,) = [line for line in found.lines() if line.startswith("problem")]
        assert "column 'lab0' is missing a value" in line
        assert line.endswith(
            "(the same: 'lab1', 'lab2', 'lab3', 'lab4', 'lab5', 'lab6', 'lab7', 'lab8', 'lab9', 'lab10' and 24 more)"
        )
        assert found.lines()[-1].startswith("35 problems found")

    def test_problems_of_several_files_name_the_files(self, tmp_path):
        for name in ("bern", "chur"):
            (tmp_path / f"{name}.csv").write_text("age,label\n" + "".join(f"{i},{i % 2}\n" for i in range(30)) + ",1\n")
        (line,) = [line for line in ct.check_own(tmp_path).lines() if line.startswith("problem")]
        assert line.endswith("(the same: 'age' in chur.csv)")

    def test_different_problems_keep_their_lines(self):
        problems = [
            Problem("a.csv", 2, "column 'x' is missing a value", "fill it in"),
            Problem("a.csv", 3, "is empty", "go"),
        ]
        assert len({kind_of(each.what) for each in problems}) == 2
        assert alike([("one", "a", ""), ("two", "b", "")]) == ["one", "two"]


class TestArrays:
    def test_arrays_are_checked_as_far_as_it_makes_sense(self, tmp_path):
        rng = np.random.default_rng(0)
        for name in ("anna", "bert"):
            y = rng.integers(0, 2, 300)
            np.savez(tmp_path / f"{name}.npz", x=np.column_stack([rng.normal(size=300), y * 2.0]), y=y)
        found = ct.check_own(tmp_path)
        assert "task: classification, because y holds whole numbers" in found.lines()
        assert about("'input 1'", found.warnings)
        assert [sum(each.counts) for each in found.holdings] == [300, 300]

    def test_many_whole_numbers_are_a_quantity_of_floats(self, tmp_path):
        rng = np.random.default_rng(0)
        np.savez(tmp_path / "anna.npz", x=rng.normal(size=(900, 2)), y=rng.integers(0, 300, 900))
        (found,) = about("quantity", ct.check_own(tmp_path).warnings)
        assert found.endswith("save y as floats")
        np.savez(tmp_path / "anna.npz", x=rng.normal(size=(900, 2)), y=rng.integers(0, 300, 900) * 1.0)
        found = ct.check_own(tmp_path)
        assert "task: regression, because y holds floats" in found.lines()
        assert not found.warnings


class TestCommands:
    @pytest.fixture
    def table(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        frame = rows()
        frame.with_columns(key=pl.Series(np.arange(400)), code=pl.Series(frame["y"] == "ill")).write_csv("all.csv")
        return ["--client", "site", "--label", "y"]

    def test_the_check_shows_a_table_and_warns_without_failing(self, table):
        found = CliRunner().invoke(app, ["data", "check", "all.csv", *table])
        assert found.exit_code == 0
        lines = found.output.splitlines()
        assert lines[1] == "task: classification, because the label 'y' has 2 different words"
        assert any(line.split()[:1] == ["s0"] for line in lines)
        assert lines[-1] == "no problem found; 2 warnings"
        clean = CliRunner().invoke(app, ["data", "check", "all.csv", *table, "--ignore", "key,code"])
        assert clean.output.splitlines()[-1] == "no problem found"

    def test_a_run_tells_them_before_it_trains(self, table):
        words = ["run", "fedavg", "--data", "all.csv", *table, "--rounds", "1", "--out", "out"]
        told = CliRunner().invoke(app, words).output
        assert "warning: column 'code'" in told
        assert told.index("warning: column 'code'") < told.index("round 1/1")
        assert "--ignore key" in told
        assert "warning" not in CliRunner().invoke(app, [*words[:-1], "again", "--quiet"]).output

    def test_what_is_loaded_is_suspected_like_what_is_checked(self, table):
        checked = ct.check_own("all.csv", client="site", label="y").warnings
        assert list(checked) == list(map(in_python, suspicions_of(ct.load_own("all.csv", client="site", label="y"))))

    def test_the_table_fits_80_columns(self):
        found = ct.check_own(rows(), **OWN)
        width = holdings_table(found).__rich_measure__(Console(width=80), Console(width=80).options).maximum
        assert width <= 80
