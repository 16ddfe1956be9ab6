"""The verdict on a run: against guessing, one model and local models, with intervals over clients."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, log_loss
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.data import Split
from coterie.errors import FederationError
from coterie.experiments.conclusion import with_verdict
from coterie.experiments.guessing import constant_outputs, guesses_of
from coterie.experiments.main_score import Score, main_score
from coterie.experiments.method_verdicts import over_seeds
from coterie.experiments.references import reference_rows, reference_settings, with_references
from coterie.experiments.session import unseen
from coterie.experiments.settings import Settings
from coterie.experiments.summary import load_rows
from coterie.experiments.verdict import compare_scores, corrected_together, judge
from coterie.experiments.worst import exact_interval, worst_client
from coterie.target import Target
from coterie.terminal import TOLD

ACCURACY, RMSE = main_score(False), main_score(True)


def rows_of(ours, guess, test=50, **more):
    """Rows of clients.csv with these scores."""
    columns = {"accuracy": ours, "guess_accuracy": guess, **more}
    return [
        {"client": f"c{i}", "test": test, "train": 9, **{name: values[i] for name, values in columns.items()}}
        for i in range(len(ours))
    ]


def sepsis(loss, guess_loss):
    """Six clients at which the model says what the majority is, whatever the example."""
    same = [0.94, 0.95, 0.93, 0.96, 0.94, 0.92]
    return rows_of(same, same, loss=[loss] * 6, guess_loss=[guess_loss] * 6)


class TestCompareScores:
    def test_change_and_counts_are_those_by_hand(self):
        ours, theirs, weights = np.array([0.9, 0.6, 0.7]), np.array([0.5, 0.65, 0.6]), np.array([10, 30, 20])
        found = compare_scores(ours, theirs, weights, ACCURACY)
        assert found.change == pytest.approx((10 * 0.4 - 30 * 0.05 + 20 * 0.1) / 60)
        assert found.low < found.change < found.high
        assert (found.better, found.worse, found.clients, found.outcome) == (2, 1, 3, "unclear")
        assert found.lost == pytest.approx(0.05)
        assert compare_scores(ours, ours, weights, ACCURACY).lost is None

    def test_errors_are_the_root_of_the_mean_of_squares_and_smaller_is_better(self):
        found = compare_scores(np.array([3.0, 4.0]), np.array([6.0, 8.0]), np.array([1, 1]), RMSE)
        assert found.theirs == pytest.approx(50**0.5)
        assert found.change == pytest.approx(12.5**0.5 - 50**0.5)
        assert (found.low + found.high) / 2 == pytest.approx(found.change)
        assert (found.outcome, found.better, found.worse) == ("unclear", 2, 0)  # two clients are few

    @given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 99)), min_size=2, max_size=12))
    def test_who_is_better_is_the_mirror_image_for_the_other_side(self, clients):
        ours, theirs, weights = (np.array(column) for column in zip(*clients, strict=True))
        one, other = compare_scores(ours, theirs, weights, ACCURACY), compare_scores(theirs, ours, weights, ACCURACY)
        assert (one.better, one.worse) == (other.worse, other.better)
        assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
        assert {one.outcome, other.outcome} in ({"better", "worse"}, {"unclear"})
        assert one.low - 1e-9 <= one.change <= one.high + 1e-9 or len(clients) < 5

    def test_clients_without_one_of_the_scores_do_not_count(self):
        found = compare_scores(np.array([0.5, np.nan, 0.7]), np.array([0.4, 0.1, np.nan]), np.ones(3), ACCURACY)
        assert (found.clients, found.change, found.low) == (1, pytest.approx(0.1), None)
        assert compare_scores(np.array([np.nan]), np.array([0.4]), np.ones(1), ACCURACY) is None

    def test_equal_clients_make_no_difference_however_many(self):
        found = compare_scores(np.full(50, 0.9), np.full(50, 0.9), np.ones(50), ACCURACY)
        assert (found.outcome, found.better, found.worse) == ("unclear", 0, 0)


class TestJudge:
    def test_a_model_that_always_says_the_majority_has_learnt_nothing(self):
        found = judge(sepsis(loss=0.22, guess_loss=0.21), ACCURACY)
        assert found.learnt == "nothing"
        assert "nothing was learnt beyond guessing: accuracy 94.0 %, and guessing has 94.0 %" in found.text
        assert "--metric" in found.text

    def test_probabilities_may_know_more_than_the_classes_say(self):
        found = judge(sepsis(loss=0.18, guess_loss=0.21), ACCURACY)
        assert found.learnt == "only in its probabilities"
        assert any("but its probabilities are: where one class is rare" in said for said in found.cautions)
        assert "nothing was learnt" not in found.text

    def test_a_better_score_is_learnt_even_if_its_probabilities_are_too_sure(self):
        rows = rows_of([0.9] * 8, [0.5] * 8, loss=[2.0] * 8, guess_loss=[0.7] * 8)
        assert judge(rows, ACCURACY).learnt == "yes"

    def test_without_guesses_nobody_knows(self):
        rows = [{"client": "a", "test": 5, "train": 5, "accuracy": 0.5}]
        found = judge(rows, ACCURACY, missing={"local": "not compared"})
        assert (found.learnt, found.against) == ("unknown", {})
        assert "local models: not compared" in found.text

    def test_the_text_has_a_line_for_each_comparison_with_how_many_are_better_and_worse(self):
        rows = rows_of([0.9, 0.8, 0.9, 0.7], [0.5] * 4, one_model_accuracy=[0.9, 0.9, 0.9, 0.9])
        text = judge(rows, ACCURACY).text.splitlines()
        assert text[0] == "Verdict: better than guessing; no clear difference to one model."
        assert [line.split()[0] for line in text[1:4]] == ["against", "guessing", "one"]
        assert text[2].endswith("4 of 4      0")
        assert text[3].endswith("0 of 4      2")
        assert " ".join(line.strip() for line in text[4:6]) == (
            "last round's models, test split, clients count by test examples, 95 % intervals over clients; "
            "p: two-sided Wilcoxon signed-rank test over clients, corrected by Holm"
        )
        assert "only 4 clients" in text[6]
        assert max(map(len, text)) <= 88

    def test_where_local_models_do_better_the_text_says_what_to_try(self):
        worse = {"local_accuracy": [0.95] * 8, "one_model_accuracy": [0.95] * 8}
        text = judge(rows_of([0.9] * 8, [0.5] * 8, **worse), ACCURACY).text
        assert "worse than one model and local models" in text
        assert "local models do better: compare with more clusters, and with +finetune" in text
        assert max(map(len, text.splitlines())) <= 88
        for change in ({"local_accuracy": [0.5] * 8}, {"one_model_accuracy": [0.95] * 8}, {}):
            assert "finetune" not in judge(rows_of([0.9] * 8, [0.5] * 8, **change), ACCURACY).text

    def test_clients_without_a_score_are_told_apart_by_why_they_have_none(self):
        rows = rows_of([0.9] * 8, [0.5] * 8, loss=[0.3] * 8, guess_loss=[0.7] * 8, metric=[0.8] * 8)
        rows[0] |= {"metric": "nan", "loss": "nan", "accuracy": 0.1}  # its model diverged
        rows[1] |= {"metric": "", "loss": "", "accuracy": ""}  # it did not answer
        rows[2] |= {"metric": "nan"}  # all its examples are of one class
        found = judge(rows, main_score(False, "auroc"))
        assert (found.without, found.diverged, found.absent, found.undefined) == (3, 1, 1, 1)
        assert "the models of 1 of 8 clients diverged" in found.text
        assert "1 of 8 clients did not answer; they do not count" in found.text
        assert any(said.startswith("auroc: 1 of 8 clients have no value") for said in found.cautions)

    def test_a_model_without_a_loss_has_diverged_though_its_classes_can_be_counted(self):
        rows = rows_of([0.9] * 8, [0.5] * 8, loss=[0.3] * 8, guess_loss=[0.7] * 8)
        rows[3]["loss"] = "nan"
        found = judge(rows, ACCURACY)
        assert (found.diverged, found.against["guess"].outcome) == (1, "unclear")

    def test_numbers_have_no_classes_that_could_be_no_better(self):
        rows = rows_of(
            [0.9] * 8, [0.9] * 8, metric=[3.0] * 8, guess_metric=[3.0] * 8, loss=[1.0] * 8, guess_loss=[2.0] * 8
        )
        for row in rows:
            del row["accuracy"], row["guess_accuracy"]
        found = judge(rows, main_score(True, "mae"))
        assert found.learnt == "yes"
        assert "probabilities" not in found.text

    def test_large_clients_that_differ_alone_explain_an_interval_without_0_beside_a_large_p(self):
        large, small = rows_of([0.80, 0.78, 0.81, 0.79], [0.5] * 4, test=900), rows_of([0.45] * 8, [0.5] * 8)
        found = judge([*large, *({**row, "client": f"small-{i}"} for i, row in enumerate(small))], ACCURACY)
        assert found.against["guess"].outcome == "better"
        assert found.against["guess"].p > 0.25
        assert "it is large clients that differ" in found.text
        assert max(map(len, found.text.splitlines())) <= 88
        assert "large clients" not in judge(rows_of([0.9] * 8, [0.5] * 8), ACCURACY).text
        few = judge(rows_of([0.9] * 6, [0.5] * 6), ACCURACY)
        many = corrected_together({f"method {i}": few for i in range(9)})
        assert many["method 0"].against["guess"].p_holm > 0.25
        assert "large clients" not in many["method 0"].text, "six of six are better: p is large by correction alone"

    def test_clients_count_by_their_examples(self):
        rows = [*rows_of([1.0], [0.0], test=300), *rows_of([0.0], [0.0], test=100)]
        rows[1] = {**rows[1], "client": "z", "train": 27}
        assert judge(rows, ACCURACY).value == pytest.approx(0.75)
        assert judge(rows, ACCURACY, "train").value == pytest.approx(0.25)

    def test_a_client_whose_model_diverged_is_not_hidden_by_the_others(self):
        rows = rows_of([0.9] * 8, [0.5] * 8)
        errors = [{"client": r["client"], "test": 50, "train": 9, "rmse": 1.0, "guess_rmse": 4.0} for r in rows]
        assert judge(errors, RMSE).sentence == "better than guessing"
        errors[2]["rmse"] = "inf"
        found = judge(errors, RMSE)
        assert (found.diverged, found.without, found.value, found.learnt) == (1, 1, None, "unknown")
        assert found.against["guess"].outcome == "unclear"
        assert found.text.startswith("Verdict: the models of 1 of 8 clients diverged")
        assert "--lr" in found.text
        assert "--metric" not in found.text
        assert found.table()["diverged"] == 1
        assert judge([{**row, "rmse": "" if i == 2 else 1.0} for i, row in enumerate(errors)], RMSE).diverged == 0

    def test_a_metric_without_a_value_is_no_divergence_where_the_loss_is_a_number(self):
        score = main_score(False, "auroc")
        rows = [
            {"client": str(i), "test": 50, "train": 9, "metric": 0.8, "guess_metric": 0.5, "loss": 0.3}
            for i in range(7)
        ]
        rows[0] |= {"metric": ""}
        assert judge(rows, score).diverged == 0
        assert judge(rows, score).sentence == "better than guessing"
        rows[0] |= {"loss": "inf"}
        assert judge(rows, score).diverged == 1
        pair = over_seeds([[rows[0]], [rows[1] | {"client": "0"}]], same_clients=True)
        assert judge(pair, score).diverged == 1, "a mean over seeds does not hide it either"

    def test_the_order_of_clients_plays_no_part(self):
        rows = rows_of([0.9, 0.1, 0.5], [0.2, 0.4, 0.5])
        assert judge(rows, ACCURACY) == judge(rows[::-1], ACCURACY)

    def test_clients_with_few_test_examples_are_named(self):
        rows = [*rows_of([0.9], [0.5], test=30), {**rows_of([0.9], [0.5], test=29)[0], "client": "z"}]
        assert "1 of 2 clients have fewer than 30 test examples" in judge(rows, ACCURACY).text

    def test_advice_is_withdrawn_where_nothing_was_learnt(self):
        summary = {"advise": {"clusters": 1, "one_model_enough": True, "text": "One model is enough"}}
        nothing = with_verdict(summary, judge(sepsis(0.3, 0.2), ACCURACY))["advise"]
        assert (nothing["decision"], nothing["one_model_enough"]) == ("cannot tell", None)
        assert nothing["text"].startswith("No advice")
        assert with_verdict(summary, judge(sepsis(0.1, 0.2), ACCURACY))["advise"] == summary["advise"]


class TestGuessing:
    def test_guesses_are_what_scikit_learn_says_of_the_majority_and_the_shares(self, images):
        data = images((20, 30), groups=2)
        found = guesses_of(data, "balanced_accuracy")
        for client in range(2):
            train, test = data.train.of(client)[1], data.test.of(client)[1]
            counts = np.bincount(train, minlength=data.classes)
            shares = (counts + 0.5) / (counts + 0.5).sum()
            said = np.full(len(test), counts.argmax())
            expected = [
                (said == test).mean(),
                f1_score(test, said, average="macro", labels=np.unique(np.concatenate([test, said])), zero_division=0),
                log_loss(test, np.tile(shares, (len(test), 1)), labels=np.arange(data.classes)),
                len(test),
            ]
            np.testing.assert_allclose(found.metrics[client], expected, rtol=1e-5)
            assert found.metric[client] == pytest.approx(1 / len(np.unique(test)) * (counts.argmax() in test))

    def test_a_number_is_guessed_by_the_mean_of_the_train_targets(self, lines):
        data = lines([1.0, 2.0], [3, 5])
        found = guesses_of(data).metrics
        for client in range(2):
            train, test = data.train.of(client)[1], data.test.of(client)[1]
            assert found[client, 0] == pytest.approx(np.mean((test - train.mean()) ** 2), rel=1e-5)

    def test_of_several_labels_each_is_guessed_by_its_odds(self):
        found = constant_outputs(np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32), Target(2, 2))
        np.testing.assert_allclose(found, np.log([2.5 / 1.5, 1.5 / 2.5]), rtol=1e-6)

    def test_blocks_of_clients_change_nothing(self, images, monkeypatch):
        data = images((5, 40, 3, 9, 8))
        whole = guesses_of(data).metrics
        monkeypatch.setattr("coterie.experiments.guessing.AT_ONCE", 7)
        np.testing.assert_array_equal(guesses_of(data).metrics, whole)


class TestWorst:
    def test_it_is_among_clients_with_thirty_test_examples(self):
        rows = [*rows_of([0.9], [0.5], test=30), {**rows_of([0.1], [0.5], test=29)[0], "client": "small"}]
        found = worst_client(rows, ACCURACY)
        assert (found.client, found.value, found.among, found.enough) == ("c0", 0.9, 1, True)

    def test_where_nobody_has_as_many_its_interval_is_wide_enough_for_the_worst_of_all(self):
        """With the corrected interval all 40 clients of accuracy 0.8 are covered at once in 95 of 100 cases."""
        rng, covered = np.random.default_rng(0), 0
        for _ in range(200):
            right = rng.binomial(20, 0.8, size=40) / 20
            found = worst_client(rows_of(right, right, test=20), ACCURACY)
            covered += found.low <= 0.8 <= found.high
        assert covered >= 190
        assert not found.enough
        assert found.high > exact_interval(found.value, 20)[1]

    def test_the_largest_error_is_the_worst_and_has_no_interval(self):
        rows = [{"client": name, "test": 99, "train": 1, "rmse": value} for name, value in (("a", 1.0), ("b", 3.0))]
        found = worst_client(rows, RMSE)
        assert (found.client, found.low) == ("b", None)
        assert worst_client([{"client": "a", "test": 5, "train": 1, "rmse": ""}], RMSE) is None


class TestOverSeeds:
    def test_named_clients_have_means_and_drawn_ones_stay_apart(self):
        runs = [rows_of([0.2, 0.4], [0.1, 0.1]), rows_of([0.4, 0.6], [0.1, 0.3])]
        same = over_seeds(runs, same_clients=True)
        assert [row["accuracy"] for row in same] == pytest.approx([0.3, 0.5])
        assert [row["guess_accuracy"] for row in same] == pytest.approx([0.1, 0.2])
        assert len({row["client"] for row in over_seeds(runs, same_clients=False)}) == 4


class TestReferences:
    def test_they_are_the_same_run_but_for_what_its_algorithm_has(self):
        base = Settings("ifca", clusters=3, lr=0.3, rounds=9, seed=4, until="accuracy=0.5", stop=True, advise=True)
        found = reference_settings(base, rounds=6)
        assert {which: each.algorithm for which, each in found.items()} == {"one_model": "fedavg", "local": "local"}
        for each in found.values():
            same = replace(each, algorithm="ifca", clusters=3, until="accuracy=0.5", stop=True, advise=True, rounds=9)
            assert replace(same, references=None) == base
        assert list(reference_settings(Settings("fedavg"), 3)) == ["local"]

    @pytest.mark.parametrize("quiet", [False, True])
    def test_it_is_told_that_they_are_trained_unless_the_run_is_quiet(self, quiet, tmp_path, monkeypatch, caplog):
        printed: list[str] = []
        monkeypatch.setattr("coterie.reporting.progress.tell", printed.append)
        words = [
            "--rounds",
            "1",
            "--clients",
            "4",
            "--model",
            "logistic",
            "--references",
            "--out",
            str(tmp_path / "run"),
        ]
        with caplog.at_level("INFO", "coterie"):
            assert CliRunner().invoke(app, ["run", "local", *words, *["--quiet"] * quiet]).exit_code == 0
        told = "training fedavg to compare with; --no-references leaves it out"
        assert printed.count(told) == (not quiet)
        assert printed == [] or not quiet
        logged = [each for each in caplog.records if "to compare with" in each.getMessage()]
        assert [getattr(each, TOLD, False) for each in logged] == [True], "else the command prints it again"

    def test_one_that_fails_costs_the_run_nothing(self):
        def fail(*given):
            raise FederationError("nobody answered; ask again")

        wanted = reference_settings(Settings("local"), 2)
        assert reference_rows(wanted, None, fail, unseen) == (
            {},
            {"one_model": "fedavg could not be trained: nobody answered; ask again"},
        )

    def test_clients_that_a_reference_does_not_have_are_empty(self):
        rows, others = rows_of([0.5, 0.6], [0.1, 0.1]), {"local": rows_of([0.7], [0.1])}
        assert [row["local_accuracy"] for row in with_references(rows, others, "accuracy")] == [0.7, ""]


def table_of_shops(path, shops=6, rows=60, seed=0):
    """Shops whose sales depend on the price, in half of them the other way round."""
    rng = np.random.default_rng(seed)
    price = rng.normal(size=(shops, rows))
    sign = np.where(np.arange(shops) % 2, -1.0, 1.0)
    frame = pl.DataFrame(
        {
            "shop": np.repeat([f"shop-{i}" for i in range(shops)], rows),
            "price": price.ravel(),
            "weather": rng.normal(size=shops * rows),
            "sold": (sign[:, None] * price > 0).astype(int).ravel(),
        }
    )
    frame.write_csv(path)
    return path


SHOPS = ["--client", "shop", "--label", "sold", "--rounds", "4", "--model", "logistic", "--quiet"]


class TestRuns:
    def test_a_run_on_ones_own_table_trains_references_once_and_says_whom_it_beats(self, tmp_path, monkeypatch):
        table = table_of_shops(tmp_path / "shops.csv")
        words = ["run", "ifca(clusters=2)", "--data", str(table), *SHOPS, "--lr", "0.5", "--out", str(tmp_path / "run")]
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output
        assert "Verdict: better than guessing and one model" in told.stdout
        verdict = json.loads((tmp_path / "run" / "summary.json").read_text())["verdict"]
        assert verdict["against"]["one_model"]["better"] == 6
        for name, which in (("fedavg", "one_model"), ("local", "local")):
            alone = [*words[:1], name, *words[2:-1], str(tmp_path / name), "--no-references"]
            done = CliRunner().invoke(app, alone)
            assert done.exit_code == 0, done.output
            folder = tmp_path / "run" / "references" / name
            assert (folder / "rounds.jsonl").exists()
            mine, theirs, beside = (load_rows(at) for at in (tmp_path / name, folder, tmp_path / "run"))
            assert [row["accuracy"] for row in mine] == [row["accuracy"] for row in theirs]
            assert [row[f"{which}_accuracy"] for row in beside] == [row["accuracy"] for row in theirs]

        (tmp_path / "run" / "summary.json").unlink()
        monkeypatch.setattr("coterie.experiments.references._log.info", lambda *_, **__: pytest.fail("trained again"))
        again = CliRunner().invoke(app, [*words, "--resume"])
        assert again.exit_code == 0, again.output
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["verdict"] == verdict

    def test_where_references_are_left_out_the_verdict_says_how_to_get_them(self, tmp_path):
        clients = ct.load("digits").partition("iid", clients=5, seed=1)
        run = ct.run("fedavg", clients, rounds=2, model="logistic")
        assert run.verdict["missing"] == {"local": "not compared; --references trains local too"}
        assert run.verdict["learnt"] == "yes"
        asked = ct.run("fedavg", clients, rounds=2, model="logistic", references=True)
        assert asked.verdict["against"]["local"]["clients"] == 5
        assert asked.summary["accuracy"] == run.summary["accuracy"]
        assert ct.run("local", clients, rounds=2, model="logistic").summary["accuracy"] == pytest.approx(
            asked.verdict["against"]["local"]["theirs"]
        )

    def test_labels_that_nothing_explains_are_not_learnt(self):
        """Features without any relation to a rare label: the model must not be praised for the majority rate."""
        rng = np.random.default_rng(3)
        clients = ct.load("digits").partition("iid", clients=8, seed=1)

        def blank(split):
            rare = (rng.random(len(split.y)) < 0.06).astype(np.int64)
            return Split(rng.normal(size=split.x.shape).astype(np.float32), rare, split.offsets)

        noise = replace(clients, train=blank(clients.train), test=blank(clients.test), classes=2, words=None)
        run = ct.run("fedavg", noise, rounds=5, model="logistic", lr=0.01)
        assert run.verdict["learnt"] == "nothing"

    def test_a_comparison_judges_each_method_by_fedavg_and_local(self, tmp_path):
        clients = ct.load("digits").partition("rotation(0,180)", clients=6, seed=1)
        options = {"rounds": 3, "seeds": 2, "model": "logistic", "clusters": 2}
        found = ct.compare(["fedavg", "ifca"], clients, **options, out=tmp_path)
        assert set(found.verdicts["ifca"].against) == {"guess", "one_model", "local"}
        assert set(found.verdicts["local"].against) == {"guess", "one_model"}
        assert found.verdicts["ifca"].clients == 12
        again = ct.compare(["fedavg", "ifca"], clients, **options, out=tmp_path)
        assert again.verdicts == found.verdicts
        assert json.loads((tmp_path / "comparison.json").read_text())["verdicts"]["ifca"]["score"] == "accuracy"
        alone = ct.compare(["ifca"], clients, **options, local=False)
        assert "add fedavg to the comparison" in alone.verdicts["ifca"].missing["one_model"]
        assert "against one model" in str(found)


def test_a_score_says_how_it_is_shown():
    assert (ACCURACY.show(0.9444), ACCURACY.show(0.012, "+"), RMSE.show(41.234567)) == ("94.4", "+1.2", "41.23")
    assert Score("metric", "auroc").show(0.71234) == "0.712"
