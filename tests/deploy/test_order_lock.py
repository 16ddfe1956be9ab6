"""Orders are given one at a time, and none while the server starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from coterie.deploy import server as server_module
from coterie.deploy.order_lock import ordering
from coterie.deploy.server import ServerFolder, make_order, resume_interrupted, submit
from coterie.errors import UsageError
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
    monkeypatch.setattr(server_module.flower, "program", lambda name: name)
    return ServerFolder.of(own / "server"), asked


def test_no_order_is_taken_while_the_server_starts(begun):
    place, asked = begun
    order = make_order(place, SHORT)
    with ordering(place.home), pytest.raises(UsageError, match=r"the server is starting.*try again"):
        submit(place, order)
    assert asked == []
    submit(place, order)
    assert asked == ["run"]


def test_of_two_orders_made_at_the_same_time_one_begins(begun):
    place, asked = begun
    one, other = make_order(place, SHORT), make_order(place, SHORT)
    submit(place, one)
    with pytest.raises(UsageError, match="an order was given a moment ago"):
        submit(place, other)
    assert asked == ["run"]


def test_an_interrupted_run_goes_on_although_its_order_is_young(begun):
    place, asked = begun
    submit(place, make_order(place, SHORT))
    resume_interrupted(place)
    assert asked == ["run", "run"]
    assert json.loads(place.order.read_text())["resume"] is True


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
