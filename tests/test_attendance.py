"""Clients that join and leave: who is there, what the others see of it, and what a run records."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.errors import RunFolderError, UnknownName, UsageError
from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings, load_settings, make_settings
from coterie.experiments.summary import load_rows
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.runtimes.attendance import Attendance, Attended, attendance
from coterie.seeding import Key

NAMES = tuple(f"client-{i}" for i in range(10))
SMALL = {"clients": 10, "rounds": 6, "threads": 1, "steps": 2, "clusters": 2, "partition": "permute(2)"}


class TestWhoIsThere:
    def test_from_the_round_of_joining_until_the_round_of_leaving(self):
        who = Attendance(("a", "b", "c"), joins={"b": 2, "c": 1}, leaves={"b": 4, "a": 1})
        assert [who.present(t).tolist() for t in range(-1, 6)] == [[0], [0], [2], [1, 2], [1, 2], [2], [2]]
        assert who.changes() == [0, 1, 2, 4]

    @given(st.integers(0, 100), st.sampled_from([0.1, 0.25, 0.5]), st.sampled_from([0.1, 0.3]), st.integers(1, 9))
    def test_a_share_of_the_clients_is_drawn(self, seed, join, leave, last):
        who = attendance(NAMES, seed, f"{join}@5", f"{leave}@{last}")
        assert sorted(who.joins.values()) == [5] * round(10 * join)
        assert sorted(who.leaves.values()) == [last] * round(10 * leave)
        assert all(who.joins.get(name, 0) < last for name in who.leaves)

    def test_the_draw_is_by_name_and_seed(self):
        one, other = attendance(NAMES, 1, "0.3@5", "0.3@6"), attendance(NAMES[::-1], 1, "0.3@5", "0.3@6")
        assert (dict(one.joins), dict(one.leaves)) == (dict(other.joins), dict(other.leaves))
        assert one.joins != attendance(NAMES, 2, "0.3@5", None).joins
        assert set(one.joins) != set(one.leaves)

    def test_names_and_shares_and_several_rounds(self):
        who = attendance(NAMES, 1, "client-3@2, 0.2@4,0.1@7", {"client-4": 3})
        assert who.joins["client-3"] == 2
        assert sorted(who.joins.values()) == [2, 4, 4, 7]
        assert who.leaves == {"client-4": 3}

    def test_a_name_that_looks_like_a_share_is_a_name_in_a_table(self):
        assert attendance(("0.5", "b"), 1, {"0.5": 3}, None).joins == {"0.5": 3}

    def test_a_share_is_at_least_one_client(self):
        assert len(attendance(NAMES, 1, "0.01@5", None).joins) == 1

    @pytest.mark.parametrize(
        ("join", "leave", "told"),
        [
            ("0.2", None, "join is '0.2'; write a share or a client and a round, such as 0.2@10"),
            ("0.2@x", None, "join is '0.2@x'"),
            (None, "@3", "leave is '@3'"),
            ("1.2@3", None, r"join is '1.2@3'; the share must be in \(0, 1\]"),
            ("0@3", None, "the share must be in"),
            ("0.2@0", None, "join is in round 0; it must be round 1 or later"),
            (None, {"client-1": -1}, "leave is in round -1"),
            ("client-1@5", "client-1@5", "client-1 joins in round 5 and leaves in round 5; it must join before"),
            ("0.8@5", "0.4@5", "leave 0.4@5: 4 clients, but only 2 can; lower the share"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_limit(self, join, leave, told):
        with pytest.raises(UsageError, match=told):
            attendance(NAMES, 1, join, leave)

    def test_an_unknown_name_offers_the_nearest(self):
        with pytest.raises(UnknownName, match="did you mean 'client-1'"):
            attendance(NAMES, 1, {"cliemt-1": 3}, None)


class TestTheFederation:
    @pytest.fixture
    def changing(self, lines, simulator):
        toy = simulator(lines((1.0, -1.0, 1.0, -1.0), (1, 2, 3, 4)), "linear", threads=1)
        return Attended(toy, Attendance(toy.names, {"client-1": 10}, {"client-2": 20}))

    def test_to_every_exchange_the_absent_are_missing_with_the_reason(self, changing):
        stack, rows = Stack(np.zeros((2, 2), np.float32), np.zeros((2, 0), np.float32)), np.array([0, 1, 1, 0])
        for task in (Task(fit=(Fit(steps=1),)), Task(report=Report(params=None, losses=True))):
            for number, there, missing in (
                (-1, [0, 2, 3], {"client-1": "joins in round 10"}),
                (10, [0, 1, 2, 3], {}),
                (20, [0, 1, 3], {"client-2": "left in round 20"}),
            ):
                replies = changing.ask(task, Sent(stack), rows, np.arange(4), Key(1, number))
                assert (replies.clients.tolist(), replies.missing) == (there, missing)
                alone = changing.inner.ask(task, Sent(stack), rows[there], np.array(there), Key(1, number))
                assert replies.rows.tolist() == rows[there].tolist()
                assert replies.cost == alone.cost

    def test_where_nobody_is_there_the_replies_are_empty(self, changing):
        stack = Stack(np.zeros((1, 2), np.float32), np.zeros((1, 0), np.float32))
        assert len(changing.ask(Task(fit=(Fit(),)), Sent(stack), np.array([0]), np.array([1]), Key(1, 0))) == 0

    def test_a_federation_that_does_not_say_has_everybody(self, changing):
        assert changing.inner.present(15).tolist() == [0, 1, 2, 3]
        assert changing.present(20).tolist() == [0, 1, 3]

    def test_participants_are_drawn_from_those_that_are_there(self, changing, train):
        done = train("fedavg", changing, 24, participation=0.5)
        asked = [step.replies.clients.tolist() for step in done]
        assert all(len(who) == 2 for who in asked[:24])
        assert not any(step.replies.missing for step in done)
        assert 1 not in {c for who in asked[:10] for c in who}
        assert 1 in {c for who in asked[10:] for c in who}
        assert 2 not in {c for who in asked[20:] for c in who}

    def test_always_there_is_as_if_nothing_were_said(self, changing, train):
        plain, same = (
            train("ifca", federation, 3, participation=0.5)
            for federation in (changing.inner, Attended(changing.inner, Attendance(changing.names)))
        )
        assert np.array_equal(plain[-1].state.stack.params, same[-1].state.stack.params)

    def test_only_clients_that_are_there_are_pinned(self, changing, train):
        for seed in range(8):
            pinned = train("joint(pinned=true)", changing, 1, seed=seed)[0].state.memory.rows
            assert sorted(pinned.values()) == [0, 1]
            assert "client-1" not in pinned


@pytest.fixture(scope="module")
def settings():
    return Settings("wecfl", **SMALL, join="0.2@2", leave={"client-000": 4})


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    return run_settings(settings, out), out


class TestARun:
    def test_records_count_those_that_are_there(self, finished):
        run, _ = finished
        assert [record["there"] for record in run.history] == [8, 8, 10, 10, 9, 9]
        assert [sum(record["clusters"]) for record in run.history] == [8, 8, 10, 10, 9, 9]
        assert not any("missing" in record or "unevaluated" in record for record in run.history)

    def test_scores_are_of_those_that_are_there(self, finished):
        run, out = finished
        rows = load_rows(out)
        scored = [row for row in rows if row["accuracy"]]
        assert [row["client"] for row in rows if row not in scored] == ["client-000"]
        sizes = [int(row["test"]) for row in scored]
        mean = np.average([float(row["accuracy"]) for row in scored], weights=sizes)
        assert run.summary["accuracy"] == pytest.approx(mean)
        assert run.summary["worst_client"] == min(float(row["accuracy"]) for row in scored)

    def test_a_client_that_left_keeps_its_label_and_its_row(self, finished):
        run, out = finished
        labels = np.load(out / "labels.npy")
        assert labels[3:, 0].tolist() == [labels[3, 0]] * 3
        row = load_rows(out)[0]
        assert (row["cluster"], row["joined"], row["left"]) == (str(run.state.labels[0]), "", "4")
        joined = [row["joined"] for row in load_rows(out)]
        assert sorted(joined) == [""] * 8 + ["2"] * 2

    def test_where_nobody_comes_or_goes_there_are_no_such_columns(self, tmp_path):
        run_settings(Settings("fedavg", **{**SMALL, "rounds": 1}), tmp_path / "run")
        assert "joined" not in (tmp_path / "run" / "clients.csv").read_text()

    @pytest.mark.parametrize("stop", [1, 3, 5])
    def test_it_is_resumed_bit_for_bit(self, stop, settings, finished, tmp_path):
        def interrupt(record):
            if record["round"] == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_settings(settings, tmp_path / "run", progress=interrupt)
        resumed = run_settings(settings, tmp_path / "run", resume=True)
        assert np.array_equal(resumed.state.stack.params, finished[0].state.stack.params)
        assert load_rows(tmp_path / "run") == load_rows(finished[1])
        seconds = {"seconds"}
        for one, other in zip(resumed.history, finished[0].history, strict=True):
            assert {k: one[k] for k in one.keys() - seconds} == {k: other[k] for k in other.keys() - seconds}

    def test_the_config_holds_it_and_another_is_refused(self, settings, finished):
        _, out = finished
        assert load_settings(out / "config.toml", {}).leave == {"client-000": 4}
        with pytest.raises(RunFolderError, match=r"was begun with join = 0\.2@2, not None"):
            run_settings(Settings("wecfl", **SMALL, leave=settings.leave), out, resume=True)

    def test_in_python_names_are_options_of_run(self):
        clients = ct.load("digits").partition("permute(2)", clients=6, seed=1)
        run = ct.run(ct.fedavg(), clients, "logistic", rounds=3, threads=1, join={"client-003": 1}, leave="0.2@2")
        assert [record["there"] for record in run.history] == [5, 6, 5]

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"leave": "1@3"}, "nobody is there in round 3; let fewer clients join late or leave"),
            ({"leave": "0.5@3", "min_clients": 8}, "min-clients is 8; 5 are asked in round 3, so 1 to 5"),
            ({"join": "0.5@2", "participation": 0.4, "min_clients": 3}, "min-clients is 3; 2 are asked in round 0"),
        ],
    )
    def test_rounds_without_enough_clients_are_refused_at_once(self, given, told):
        with pytest.raises(UsageError, match=told):
            run_settings(Settings("fedavg", **SMALL, **given))

    def test_to_leave_after_the_last_round_is_no_matter(self):
        assert run_settings(Settings("fedavg", **{**SMALL, "rounds": 1}, leave="1@3")).history[0]["there"] == 10

    @pytest.mark.parametrize("value", [3, {"client-001": "soon"}, True])
    def test_other_types_are_refused(self, value):
        with pytest.raises(UsageError, match=r"join is .* it must be a text or a table of whole numbers"):
            make_settings({"algorithm": "fedavg", "join": value})

    def test_on_the_command_line(self, tmp_path):
        words = "run fedavg --clients 10 --rounds 3 --steps 1 --threads 1 --join 0.2@1 --leave client-000@2 --quiet"
        done = CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path / "run")])
        assert done.exit_code == 0, done.output
        records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
        assert [record["there"] for record in records] == [8, 10, 9]
