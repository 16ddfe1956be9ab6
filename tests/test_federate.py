"""The server's side of a federation without the network: waiting, agreeing, training, recording, status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from local_sites import LocalSites
from typer.testing import CliRunner

from coterie.cli import following
from coterie.cli.main import app
from coterie.data import from_arrays, load, load_own
from coterie.deploy.deployment import write_deployment
from coterie.deploy.flower import bundle
from coterie.deploy.order import Order
from coterie.deploy.policy import Policy
from coterie.deploy.processes import running, wait_until
from coterie.deploy.server_run import agree_on_data, carry_out, wait_for_sites
from coterie.deploy.site_answers import Site
from coterie.deploy.status import StatusBoard, headline, is_alive, is_over, read_board, status_table
from coterie.errors import FederationError, RunFolderError, UsageError
from coterie.experiments.apart import Apart
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import STATE, load_rounds, load_state, load_summary
from coterie.experiments.settings import Settings
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Loss, Task
from coterie.wire import codec
from coterie.wire.reply_checks import read_reply

SETTINGS = Settings("wecfl", partition="rotation(0,180)", clients=4, clusters=2, model="mlp(8)", rounds=3)


@pytest.fixture(scope="module")
def data():
    return load("digits").partition("rotation(0,180)", clients=4, seed=1)


@pytest.fixture
def near(data, tmp_path):
    return LocalSites(data, tmp_path)


@pytest.fixture
def order(data, tmp_path):
    return Order(
        settings=SETTINGS.table(),
        out=str(tmp_path / "run"),
        board=str(tmp_path / "status.json"),
        sites=data.names,
        minimum=4,
        timeout=1.0,
        patience=0.2,
        deliver=False,
    )


@pytest.fixture
def board(order, tmp_path):
    return StatusBoard(tmp_path / "status.json", order.run, order.out, order.sites)


def test_a_run_ends_as_the_simulator_does_and_leaves_the_same_folder(data, near, order, board, tmp_path):
    done = carry_out(order, near, board)
    expected = run_settings(replace(SETTINGS, plan="native", threads=1), data=data)
    assert done.state.labels.tolist() == expected.state.labels.tolist()
    np.testing.assert_array_equal(done.state.stack.params, expected.state.stack.params)
    same = ("accuracy", "macro_f1", "worst_client", "rounds", "bytes_down", "bytes_up", "steps", "clusters_found")
    assert {name: done.summary[name] for name in same} == {name: expected.summary[name] for name in same}
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files >= {"config.toml", "rounds.jsonl", "labels.npy", "state.safetensors", "summary.json", "clients.csv"}
    assert read_board(board.path)["state"] == "done"


class TestNewcomersTables:
    """``coterie assign`` on the run of a federation of sites with tables."""

    @pytest.fixture
    def ran(self, tmp_path, monkeypatch):
        """Run on two sites' tables; ``kept``: the server has their schema. Then place a table with these words."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "sites").mkdir()
        for name in "ab":
            rows = "".join(f"{i % 7}.5,{'yx'[i % 2]}\n" for i in range(90))
            (tmp_path / "sites" / f"{name}.csv").write_text(f"dose,label\n{rows}")
        data = load_own(tmp_path / "sites")
        data.schema.save(tmp_path / "schema.json")

        def run(kept, *words):
            schema = str(tmp_path / "schema.json") if kept else None
            settings = Settings("wecfl", clusters=2, model="mlp(4)", rounds=2).table()
            order = Order(
                settings=settings,
                out="run",
                board="server/status.json",
                sites=data.names,
                minimum=2,
                timeout=1.0,
                patience=0.2,
                schema=schema,
                deliver=False,
            )
            carry_out(
                order, LocalSites(data, tmp_path), StatusBoard(tmp_path / "status.json", order.run, "run", order.sites)
            )
            return CliRunner().invoke(app, ["assign", "run", "--data", "sites/a.csv", *words])

        return run

    @pytest.mark.parametrize(("kept", "words"), [(True, []), (False, ["--schema", "schema.json"])])
    def test_are_read_by_the_sites_schema(self, ran, kept, words):
        result = ran(kept, *words)
        assert result.exit_code == 0, result.output
        assert "serves it with accuracy" in result.stdout

    def test_are_refused_for_the_reason_that_there_is(self, ran):
        result = ran(False)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            "error: sites/a.csv is a table and run is a federation's run without a schema.json: name the one that the "
            "sites have with --schema; or save it as .npz with x and y\n"
        )

    def test_are_not_read_by_a_schema_of_other_data(self, ran, tmp_path):
        (tmp_path / "schema.json").unlink()
        (tmp_path / "other").mkdir()
        for name in "ab":
            rows = "".join(f"{i},{i % 5},{'yx'[i % 2]}\n" for i in range(90))
            (tmp_path / "other" / f"{name}.csv").write_text(f"age,dose,label\n{rows}")
        load_own(tmp_path / "other").schema.save(tmp_path / "schema.json")
        assert "is a federation's run without a schema.json" in ran(True).stderr


def test_what_only_a_simulation_knows_is_not_in_the_summary(near, order, board):
    summary = carry_out(order, near, board).summary
    assert not {"ari", "majority"} & set(summary)
    assert summary["gf1"] is None


def test_a_run_goes_on_where_it_was_killed(near, order, board, tmp_path):
    whole = carry_out(order, near, board).state
    short = replace(order, out=str(tmp_path / "again"), settings={**order.settings, "rounds": 1})
    carry_out(short, near, board)
    on = replace(order, out=str(tmp_path / "again"), resume=True)
    np.testing.assert_array_equal(carry_out(on, near, board).state.stack.params, whole.stack.params)
    assert [record["round"] for record in load_rounds(tmp_path / "again")] == [0, 1, 2]


def test_a_site_that_is_not_there_is_missed_with_a_reason_and_may_come_later(data, order, board, tmp_path):
    near = LocalSites(data, tmp_path, away=("client-002",))
    carry_out(replace(order, minimum=3), near, board)
    assert {tuple(r["missing"]) for r in load_rounds(tmp_path / "run")} == {("client-002",)}
    near.away.clear()
    later = replace(order, minimum=3, out=str(tmp_path / "later"))
    assert "missing" not in carry_out(later, near, board).history[0]


def test_too_few_sites_are_an_error_that_names_them(data, order, board, tmp_path):
    near = LocalSites(data, tmp_path, away=("client-001",), mute=("client-003",))
    with pytest.raises(FederationError, match=r"2 of 4 sites are ready after 0.2 s, 4 are needed; .*client-001: not"):
        carry_out(order, near, board)
    status = read_board(board.path)
    assert status["state"] == "failed"
    assert "client-003: no answer" in status["error"]


def test_a_site_with_a_size_that_does_not_count_in_full_is_named(near, order, board):
    near.sites[2].hello = lambda: replace(Site.hello(near.sites[2]), train=10**6)
    carry_out(order, near, board)
    (note,) = read_board(board.path)["notes"]
    usual = len(near.sites[0].data.train.y)
    assert f"client-002 says that it has 1000000 examples, more than 5 times the median of {usual}" in note
    assert f"it counts as one of {5 * usual}" in note
    assert "raise weight-bound" in str(status_table(read_board(board.path), {}).caption)
    carry_out(replace(order, settings={**order.settings, "weight_bound": 0.0}, out=order.out + "-all"), near, board)
    assert read_board(board.path)["notes"] == []


def test_after_a_while_a_run_begins_with_those_who_are_there_if_they_are_enough(data, order, board, tmp_path):
    near = LocalSites(data, tmp_path, mute=("client-003",))
    carry_out(replace(order, quorum=3), near, board)
    assert {tuple(r["missing"]) for r in load_rounds(tmp_path / "run")} == {("client-003",)}
    near.mute.add("client-001")
    with pytest.raises(FederationError, match=r"2 of 4 sites are ready after 0.2 s, 3 are needed"):
        carry_out(replace(order, quorum=3, out=str(tmp_path / "again")), near, board)


def test_a_site_that_is_deaf_at_first_is_asked_again(data, order, board, tmp_path):
    """After a restart of the server a site counts as connected before it looks for messages again."""
    near = LocalSites(data, tmp_path, mute=("client-003",))
    hear = near.__call__
    calls, said = [], []

    def deaf_once(requests):
        calls.append(sorted(requests))
        said.append(headline(board.status))
        replies = hear(requests)
        near.mute.clear()
        return replies

    deaf_once.connected = near.connected
    patient = replace(order, minimum=4, quorum=3, patience=600.0)
    assert set(wait_for_sites(patient, deaf_once, board, pause=0.01)) == set(data.names)
    assert calls == [[0, 1, 2, 3], [3]]
    assert said[1].endswith(" waiting for sites: 3 of 4 are ready; it begins with 4, or with 3 after 10 min")


def test_a_site_that_goes_by_another_name_than_its_key_is_not_believed(near, order, board):
    near.sites[1].name = "client-000"
    with pytest.raises(FederationError, match="calls itself 'client-000'; correct its site"):
        wait_for_sites(order, near, board)


LIES = {
    "it holds a malformed SiteDescription": lambda about: {"name": about["name"]},
    "site is 'x' in a message": lambda about: "x",
    "has coterie 9.9 where the server has": lambda about: {**about, "version": "9.9"},
    "reports impossible sizes": lambda about: {**about, "train": 0},
    "65537 classes": lambda about: {**about, "classes": 65537},
    "classes of SiteDescription is True": lambda about: {**about, "classes": True},
}


@pytest.mark.parametrize("why", LIES)
def test_what_cannot_be_true_of_a_site_is_not_believed(near, order, board, why):
    honest = near.sites[1].answer

    def lie(request):
        arrays, header = codec.decode(honest(request))
        return codec.encode(arrays, **{**header, "site": LIES[why](header["site"])})

    near.sites[1].answer = lie
    with pytest.raises(FederationError, match=f"client-001: .*{why.removeprefix('it ')}"):
        wait_for_sites(order, near, board)


def test_a_run_is_not_resumed_with_other_sites_in_the_places_of_the_first(near, order, board):
    carry_out(order, near, board)
    near.names = near.names[::-1]
    near.sites.reverse()
    other = replace(order, sites=order.sites[::-1], resume=True)
    with pytest.raises(RunFolderError, match="begun with 4 clients and this has the same in another order"):
        carry_out(other, near, board)


def test_a_run_that_nobody_evaluates_says_why(near, order, board):
    for site in near.sites:
        site.policy = Policy(reports=("params",))
    with pytest.raises(FederationError, match=r"nobody evaluated a model.*client-000: the report asks for metrics"):
        carry_out(order, near, board)


def test_a_refusal_in_any_exchange_of_a_round_is_in_its_record(near, order, board):
    """lcfl asks for losses in a second exchange; a site that refuses those is named."""
    near.sites[1].policy = Policy(reports=("params", "metrics"))
    lcfl = replace(order, settings={**order.settings, "algorithm": "lcfl(warmup=1)"})
    history = carry_out(lcfl, near, board).history
    assert any("asks for losses" in record.get("missing", {}).get("client-001", "") for record in history)


@pytest.mark.parametrize(("what", "other"), [("shape", (9, 9)), ("class_names", ("a",)), ("unit", 2.0)])
def test_sites_that_differ_are_named(near, order, board, what, other):
    descriptions = wait_for_sites(order, near, board)
    descriptions["client-002"] = replace(descriptions["client-002"], **{what: other})
    with pytest.raises(FederationError, match=f"client-002 has {what} .* where client-000 has"):
        agree_on_data(order, descriptions)


def test_classes_are_as_many_as_the_site_with_the_most_has(near, order, board):
    descriptions = wait_for_sites(order, near, board)
    descriptions["client-002"] = replace(descriptions["client-002"], classes=7)
    assert agree_on_data(order, descriptions).classes == 10
    descriptions["client-002"] = replace(descriptions["client-002"], classes=None)
    with pytest.raises(FederationError, match="some sites have classes and others a real target"):
        agree_on_data(order, descriptions)


def test_data_of_a_simulation_mean_nothing_to_an_order(order):
    settings = replace(
        order, settings={**order.settings, "data": "mnist", "label": "y", "plan": "lockstep"}
    ).experiment()
    assert (settings.data, settings.label, settings.plan, settings.clients) == ("federation", None, "auto", 4)


def test_orders_are_kept_as_they_were(order, tmp_path):
    order.save(tmp_path / "order.json")
    assert Order.load(tmp_path / "order.json") == order
    (tmp_path / "order.json").write_text("{}")
    with pytest.raises(UsageError, match="is no order"):
        Order.load(tmp_path / "order.json")


class TestReplies:
    """What a server believes of a reply."""

    MODEL = build_model("mlp(4)", (8, 8), 10)

    def stack(self):
        return Stack(*(np.stack([part, part]) for part in self.MODEL.initial(1)))

    def read(self, task, arrays, **header):
        wanted = message.form(task, Sent(self.stack()), self.MODEL.layout)
        return read_reply(codec.encode(arrays, **{"problem": None, **header}), wanted, task, np.int64(1))

    def arrays(self, **changed):
        size = self.MODEL.layout.size
        good = {"rows": np.array([0]), "examples": np.array([5]), "params": np.zeros((1, size), np.float32)}
        return {**good, "buffers": np.zeros((1, 0), np.float32), "training_loss": np.array([0.5]), **changed}

    def test_its_label_is_the_one_that_was_sent_where_it_could_not_choose(self):
        assert self.read(Task(fit=(Fit(),)), self.arrays())["rows"].tolist() == [1]

    def test_its_choice_must_exist(self):
        task = Task(choose=(Loss(),), fit=(Fit(),))
        assert self.read(task, self.arrays())["rows"].tolist() == [0]
        for wrong in (-1, 2):
            with pytest.raises(FederationError, match=f"sent {wrong} in rows; it must be 0 to 1"):
                self.read(task, self.arrays(rows=np.array([wrong])))

    @pytest.mark.parametrize("count", [0, -3])
    def test_it_has_examples(self, count):
        with pytest.raises(FederationError, match=f"sent {count} in examples; it must be 1 to inf"):
            self.read(Task(fit=(Fit(),)), self.arrays(examples=np.array([count])))

    def test_more_than_was_asked_for_is_refused_like_less(self):
        with pytest.raises(FederationError, match=r"losses.* where rows, examples"):
            self.read(Task(fit=(Fit(),)), self.arrays(losses=np.zeros((1, 2))))
        with pytest.raises(FederationError, match="sent nothing where"):
            self.read(Task(report=Report(params=None)), {})

    def test_a_long_problem_is_shortened(self):
        with pytest.raises(FederationError) as raised:
            self.read(Task(fit=(Fit(),)), {}, problem="x" * 9999)
        assert len(str(raised.value)) == 500


class TestStatusBoard:
    """The status file of a run."""

    def test_the_process_that_wrote_it_is_known_from_another_of_its_number(self, board):
        board.update(state="running")
        status = read_board(board.path)
        assert is_alive(status)
        assert not is_alive({**status, "process": [status["process"][0], "1"]})
        assert not is_alive({**status, "process": [2**22, None]})

    def test_a_process_that_nobody_has_buried_is_not_alive(self):
        child = subprocess.Popen([sys.executable, "-c", "pass"])
        wait_until(lambda: not is_running(child.pid), [], "it goes on", 10)
        assert not is_alive({"process": [child.pid, Path(f"/proc/{child.pid}/stat").read_text().split()[21]]})
        child.wait()

    def test_an_internal_error_is_the_end_too(self, board):
        with pytest.raises(ZeroDivisionError), board.recording_end():
            _ = 1 / 0
        status = read_board(board.path)
        assert is_over(status)
        assert status["error"].startswith("internal error: ZeroDivisionError")

    def test_status_shows_who_is_there_and_where_they_belong(self, near, order, board):
        carry_out(order, near, board)
        board.sites({"client-001": "answered"})
        table = status_table(read_board(board.path), {"client-000": "online", "client-001": "offline"})
        cells = [list(map(str, column.cells)) for column in table.columns]
        assert str(table.title) == "run run done, round 3 of 3"
        assert cells[0] == list(near.names)
        assert cells[1] == ["online", "offline", "unknown", "unknown"]
        assert cells[4] == ["0", "0", "1", "1"] or cells[4] == ["1", "1", "0", "0"]


class TestProcesses:
    """Programs beside ours."""

    def test_they_end_with_everything_they_started(self, tmp_path):
        script = "import subprocess, time; print(subprocess.Popen(['sleep', '99']).pid, flush=True); time.sleep(99)"
        command = [sys.executable, "-c", script]
        log = tmp_path / "log"
        with running("it", command, os.environ, log, tmp_path):
            wait_until(lambda: log.exists() and log.read_text().strip(), [], "it says nothing")
            child = int(log.read_text())
            assert is_running(child)
        wait_until(lambda: not is_running(child), [], "it goes on", 10)

    def test_a_killed_parent_takes_them_along(self, tmp_path):
        script = (
            "import os, pathlib, sys, time\nfrom coterie.deploy.processes import running\n"
            "with running('it', ['sleep', '99'], os.environ, pathlib.Path('log'), pathlib.Path('.')) as it:\n"
            "    print(it.process.pid, flush=True)\n    time.sleep(99)\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        wait_until(lambda: not is_running(child), [], "it goes on", 10)

    def test_one_that_ends_is_an_error_with_its_last_words(self, tmp_path):
        with (
            running("it", ["sh", "-c", "echo no such port; exit 3"], os.environ, tmp_path / "log", tmp_path) as program,
            pytest.raises(FederationError, match="it ended with code 3: no such port"),
        ):
            wait_until(lambda: False, [program], "it does not answer", 10)


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_nothing_that_a_site_would_run_is_in_the_bundle():
    """The server ships an app because Flower wants one; its part for sites holds no handler of ours."""
    files = bundle()
    assert files["coterie_site.py"] == "from flwr.clientapp import ClientApp\n\napp = ClientApp()\n"
    assert "coterie" not in files["coterie_site.py"]


class TestCommands:
    """Bad input is one line and an exit code."""

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["run", "wecfl"], "there is no"),
            (["server"], "there is no"),
            (["client"], "there is no"),
            (["status"], "there is no"),
            (["stop"], "there is no"),
            (["audit"], "there is no"),
            (["init", "new", "--sites", "a,a"], "named twice"),
            (["init", "new", "--sites", "a", "--schema", "none.json"], "cannot be read"),
            (["try", "nonsense"], "unknown algorithm"),
        ],
    )
    def test_a_wrong_command_says_what_is_wrong(self, words, expected, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, ["federate", *words])
        assert done.exit_code == 2, done.output
        assert expected in " ".join(done.output.split())
        assert "Traceback" not in done.output

    def test_ctrl_c_says_that_the_run_goes_on(self, tmp_path, monkeypatch):
        def interrupted(*_):
            raise KeyboardInterrupt

        stand_ins = {
            "deploy.run_control.make_order": lambda *_, **__: None,
            "deploy.run_control.submit": print,
            "cli.federate.watched": interrupted,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(f"coterie.{name}", stand_in)
        folder = tmp_path / "f"
        write_deployment(folder, ["bern"])
        done = CliRunner().invoke(app, ["federate", "run", "wecfl", "--folder", str(folder / "server")])
        assert done.exit_code == 130
        assert "the run goes on without you" in done.stderr
        assert "--resume" not in done.stderr

    def test_a_deployment_is_written_and_read_back(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, ["federate", "init", "new", "--sites", "bern, chur"])
        assert done.exit_code == 0, done.output
        assert "a federation of 2 sites is in new" in done.output
        monkeypatch.setattr("coterie.deploy.server_folder.is_listening", lambda port: False)
        shown = CliRunner().invoke(app, ["federate", "status", "--folder", "new/server"])
        assert shown.exit_code == 1
        said = " ".join(shown.output.split())
        assert "the server is not running: nothing listens at 127.0.0.1:8000; start it: coterie federate server" in said
        assert "Flower" not in said


def test_sites_may_count_by_their_train_examples(data, near, order, board):
    done = carry_out(replace(order, settings={**order.settings, "weigh_by": "train"}), near, board)
    test, train = (
        run_settings(replace(SETTINGS, plan="native", threads=1, weigh_by=by), data=data) for by in ("test", "train")
    )
    assert done.summary["accuracy"] == train.summary["accuracy"] != test.summary["accuracy"]


def test_sites_tell_their_gradients_if_asked_for(data, near, order, board):
    done = carry_out(replace(order, settings={**order.settings, "diagnose": True}), near, board)
    expected = run_settings(replace(SETTINGS, plan="native", threads=1, diagnose=True), data=data)
    for name in ("objective", "gradient_clusterability", "clusterability", "temperature", "bytes_stored"):
        assert [record[name] for record in done.history] == [record[name] for record in expected.history]


class TestApart:
    """What sets the clusters apart is asked of sites only if the run says so, and given only if their policies do."""

    ASKED: ClassVar = ("coterie.client_functions:input_sums", "coterie.client_functions:label_sums")

    @pytest.fixture
    def tables(self):
        rng = np.random.default_rng(0)
        centre = np.repeat([0.0, 3.0], 3)
        clients = {f"s{i}": (rng.normal(centre[i], 1, (60, 2)), rng.integers(0, 2, 60)) for i in range(6)}
        return from_arrays(clients)

    @pytest.fixture
    def wanted(self, tables, order):
        settings = {"algorithm": "wecfl", "clusters": 2, "model": "mlp(4)", "rounds": 2, "apart": True}
        return replace(order, settings=settings, sites=tables.names, minimum=6)

    def carried(self, order, tables, tmp_path, functions):
        sites = LocalSites(tables, tmp_path)
        for site in sites.sites:
            site.policy = replace(site.policy, functions=tuple(functions))
        return carry_out(order, sites, StatusBoard(tmp_path / "status.json", order.run, order.out, tables.names))

    def test_the_sums_of_sites_say_what_those_of_a_simulation_say(self, wanted, tables, tmp_path):
        done = self.carried(wanted, tables, tmp_path, self.ASKED)
        settings = Settings(**wanted.settings, plan="native", threads=1)
        expected = run_settings(settings, tmp_path / "simulated", data=tables)
        assert done.state.labels.tolist() == expected.state.labels.tolist()
        assert Apart.load(tmp_path / "run") == Apart.load(tmp_path / "simulated")

    def test_sites_that_do_not_list_them_stay_silent(self, wanted, tables, tmp_path):
        self.carried(wanted, tables, tmp_path, ())
        found = Apart.load(tmp_path / "run")
        assert (found.clusters, found.silent) == ((), tables.names)

    def test_nobody_is_asked_unless_the_run_says_so(self, wanted, tables, tmp_path):
        settings = {name: value for name, value in wanted.settings.items() if name != "apart"}
        self.carried(replace(wanted, settings=settings), tables, tmp_path, self.ASKED)
        assert not (tmp_path / "run" / "apart.json").exists()


def test_the_progress_of_a_run_counts_the_rounds_that_it_turned_out_to_have(near, order, board, monkeypatch, capsys):
    """With tables they are others than were known when the order was given."""
    tables = {**order.settings, "rounds": 2}
    given = replace(order, settings={**order.settings, "rounds": 50}, tables=tables)
    carry_out(replace(given, settings=tables), near, board)

    def follow(_, progress, tell):
        for record in load_rounds(Path(order.out)):
            progress(record)
        return load_summary(Path(order.out))

    monkeypatch.setattr("coterie.deploy.run_control.follow", follow)
    summary = following.watched(None, given, quiet=False)
    assert summary["rounds"] == 2
    assert "round 2/2" in capsys.readouterr().err


def test_the_summary_of_a_federation_is_json(near, order, board, tmp_path):
    carry_out(order, near, board)
    assert json.dumps(load_summary(tmp_path / "run"))
    assert load_state(tmp_path / "run" / STATE).round == 3
