"""Orders are given one at a time, and none while the server starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.deploy import run_control
from coterie.deploy.order_lock import ordering, the_only_server
from coterie.deploy.run_control import check_not_lost, follow, is_starting, make_order, resume_interrupted, stop, submit
from coterie.deploy.server_folder import ServerFolder
from coterie.deploy.status import DONE, RUNNING, STOPPED, StatusBoard, read_board
from coterie.errors import FederationError, RunFolderError, UsageError
from coterie.experiments.settings import Settings

SHORT = Settings("fedavg", model="mlp(4)", rounds=1)


@pytest.fixture
def begun(own, monkeypatch):
    """A server's folder, and the runs that Flower was asked to start."""
    asked = []

    def ask(_, command):
        asked.append(command[1])
        return {"success": True, "run-id": 7}

    monkeypatch.setattr(ServerFolder, "ask", ask)
    monkeypatch.setattr(run_control.flower, "program", lambda name: name)
    return ServerFolder.of(own / "server"), asked


def test_no_order_is_taken_while_the_server_starts(begun):
    place, asked = begun
    order = make_order(place, SHORT)
    with ordering(place.home), pytest.raises(UsageError, match=r"the server is starting.*try again"):
        submit(place, order)
    assert asked == []
    submit(place, order)
    assert asked == ["run"]


def test_a_folder_has_one_server(begun):
    """Two of them, on other ports, would write to one database, and Flower's commands ask the later one."""
    place, _ = begun
    with the_only_server(place.home):
        done = CliRunner().invoke(app, ["federate", "server", "--folder", str(place.folder), "--no-proxy"])
    assert done.exit_code == 2
    assert f"another server runs on {place.folder}; stop it first" in done.stderr.replace("\n", "")


def test_of_two_orders_made_at_the_same_time_one_begins(begun):
    place, asked = begun
    one, other = make_order(place, SHORT), make_order(place, SHORT)
    submit(place, one)
    with pytest.raises(UsageError, match="an order was given a moment ago"):
        submit(place, other)
    assert asked == ["run"]


@pytest.fixture
def minutes_old(begun, monkeypatch):
    """A server whose run was ordered two minutes ago and has said nothing yet; what Flower says of it."""
    place, _ = begun
    submit(place, make_order(place, SHORT))
    past = time.time() - 2 * run_control.SILENCE
    os.utime(place.order, (past, past))
    said = {}

    def set_status(status):
        said["runs"] = [{"status": status}]

    monkeypatch.setattr(ServerFolder, "ask", lambda _, command: {"success": True, "run-id": 8, **said})
    return place, set_status


@pytest.mark.parametrize("status", ["pending", "starting", "running"])
def test_a_run_that_takes_minutes_to_begin_is_not_given_up_nor_doubled(minutes_old, status):
    """Two runs at once would write to the same files."""
    place, set_status = minutes_old
    set_status(status)
    with pytest.raises(UsageError, match="an order was given a moment ago"):
        make_order(place, replace(SHORT, seed=2))
    check_not_lost(place)


def test_a_run_that_ended_before_it_began_is_given_up_and_another_may_begin(minutes_old):
    place, set_status = minutes_old
    set_status("finished:failed")
    with pytest.raises(FederationError, match="the run's process is gone"):
        check_not_lost(place)
    submit(place, make_order(place, replace(SHORT, seed=2)))


def test_a_run_that_flower_never_began_within_ten_minutes_is_given_up(minutes_old):
    place, set_status = minutes_old
    set_status("pending")
    past = time.time() - run_control.LONGEST_START - 1
    os.utime(place.order, (past, past))
    assert not is_starting(place)


def test_a_run_that_ended_while_its_status_was_read_is_not_lost(begun):
    """Its process is gone, but it left its end."""
    place, _ = begun
    order = make_order(place, SHORT)
    board = StatusBoard(place.board, order.run, order.out, order.sites)
    board.status["process"] = [2**22 + 1, "1"]
    board.update(state=DONE)
    check_not_lost(place)
    board.update(state=RUNNING)
    with pytest.raises(FederationError, match="the run's process is gone"):
        check_not_lost(place)


def test_an_interrupted_run_goes_on_although_its_order_is_young(begun):
    place, asked = begun
    submit(place, make_order(place, SHORT))
    resume_interrupted(place)
    assert asked == ["run", "run"]
    assert json.loads(place.order.read_text())["resume"] is True


@pytest.fixture
def interrupted(begun):
    """A server whose run lost its process."""
    place, asked = begun
    order = make_order(place, SHORT)
    submit(place, order)
    board = StatusBoard(place.board, order.run, order.out, order.sites)
    board.status["process"] = [2**22 + 1, "1"]
    board.update(state=RUNNING)
    return place, order, asked


def test_an_order_does_not_take_the_place_of_an_interrupted_run(interrupted):
    """It would make the server forget that run, which it resumes when it is started again."""
    place, order, asked = interrupted
    with pytest.raises(UsageError, match=r"run fedavg-seed-1 was interrupted, .* to give it up, coterie federate stop"):
        make_order(place, replace(SHORT, seed=2))
    with pytest.raises(UsageError, match="was interrupted"):
        submit(place, replace(order, out=str(place.runs / "other")))
    assert read_board(place.board)["state"] == RUNNING
    submit(place, replace(order, resume=True))
    assert asked == ["run", "run"]


def test_an_interrupted_run_can_be_given_up(interrupted):
    place, _, asked = interrupted
    stop(place)
    assert read_board(place.board)["state"] == STOPPED
    resume_interrupted(place)
    assert asked == ["run"]
    submit(place, make_order(place, replace(SHORT, seed=2)))


def test_an_order_that_no_server_takes_leaves_what_was_there(interrupted, monkeypatch):
    place, order, _ = interrupted
    stop(place)
    before = place.board.read_bytes(), place.number.read_bytes()

    def nobody(_, command):
        raise FederationError("the server does not answer")

    monkeypatch.setattr(ServerFolder, "ask", nobody)
    with pytest.raises(FederationError, match="does not answer"):
        submit(place, replace(order, out=str(place.runs / "other")))
    assert (place.board.read_bytes(), place.number.read_bytes()) == before
    assert not place.order.exists()


def test_a_folder_without_a_run_is_not_resumed(begun):
    with pytest.raises(RunFolderError, match="typo holds no run to resume; correct --out"):
        make_order(begun[0], SHORT, begun[0].runs / "typo", resume=True)


def test_for_what_a_run_waits_is_told_while_it_is_followed(begun, monkeypatch):
    place, _ = begun
    board = StatusBoard(place.board, "r", str(place.runs / "r"), ("bern",))
    said, news = [], iter(["for sites: 0 of 1 are ready", "for sites: 0 of 1 are ready", "for sites: 1 of 1 are ready"])

    def go_on(seconds):
        told = next(news, None)
        if told is None:
            board.update(state=STOPPED)
        else:
            board.update(awaited=told)

    monkeypatch.setattr(run_control.time, "sleep", go_on)
    with pytest.raises(FederationError, match="stopped"):
        follow(place, lambda record: None, said.append)
    assert said == ["waiting for sites: 0 of 1 are ready", "waiting for sites: 1 of 1 are ready"]


def test_a_server_that_was_killed_while_it_started_leaves_no_lock(tmp_path):
    code = "import sys,time,pathlib\nfrom coterie.deploy.order_lock import ordering\n"
    code += "with ordering(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError), ordering(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    time.sleep(0.05)
    with ordering(tmp_path):
        pass
