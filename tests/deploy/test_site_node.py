"""Flower's node of a site is started again when it ends, and an error if it cannot start at all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from coterie.deploy import flower, reach, site_node
from coterie.deploy.config import load_site
from coterie.deploy.health import node_health
from coterie.deploy.processes import last_words, running
from coterie.deploy.trial import free_ports
from coterie.errors import FederationError

LISTENS = """
import socket, sys, time
held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(float(sys.argv[2]))
print("the server does not know this key")
"""


def config_with(own, monkeypatch, seconds: str, code: str = LISTENS):
    """A site whose node is a program that listens for some seconds and ends."""
    (port,) = free_ports(1)
    monkeypatch.setattr(flower, "supernode", lambda *_, **__: [sys.executable, "-c", code, str(port), seconds])
    monkeypatch.setattr(site_node, "AGAIN", 0.05)
    monkeypatch.setattr(site_node, "POLL", 0.05)
    return replace(load_site(own / "sites" / "bern"), port=port)


def test_a_node_that_ends_is_started_again_and_the_operator_is_told_why(own, monkeypatch):
    config, stop, told = config_with(own, monkeypatch, "0.4"), threading.Event(), []

    def tell(text):
        told.append(text)
        if len(told) == 2:
            stop.set()

    site_node.keep_node(config, stop, tell)
    assert len(told) == 2
    assert "it is started again in 0.05 s: the server does not know this key" in told[0]
    assert "in 0.1 s" in told[1]


ONCE = """
import os, socket, sys, time
if os.path.exists("was here"):
    raise SystemExit("another node has this key")
open("was here", "w").close()
held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(float(sys.argv[2]))
print("the server is gone")
"""


def test_a_node_that_listened_once_is_started_again_also_when_it_ends_before_it_listens(own, monkeypatch):
    """The site would end with it, and its agent too, although only the server has to notice something."""
    config, stop, told = config_with(own, monkeypatch, "0.4", ONCE), threading.Event(), []

    def tell(text):
        told.append(text)
        if len(told) == 3:
            stop.set()

    site_node.keep_node(config, stop, tell)
    assert "the server is gone" in told[0]
    assert all("another node has this key" in each for each in told[1:])


def test_a_node_is_left_alone_when_the_site_stops(own, monkeypatch):
    config, stop, told = config_with(own, monkeypatch, "60"), threading.Event(), []
    threading.Timer(0.5, stop.set).start()
    site_node.keep_node(config, stop, told.append)
    assert told == []


def test_a_node_that_cannot_start_is_an_error(own, monkeypatch):
    config = config_with(own, monkeypatch, "0", "raise SystemExit('no such flag')")
    with pytest.raises(FederationError, match="no such flag"):
        site_node.keep_node(config, threading.Event(), print)


FLOWER = """\
INFO:     Uvicorn running on http://127.0.0.1:9094 (Press CTRL+C to quit)
\x1b[91mERROR \x1b[0m:     Exit Code: 305
Failed to activate SuperNode.

INFO:     Shutting down
\x1b[92mINFO \x1b[0m:      FastAPI lifespan: shutdown
"""


def test_the_reason_of_an_end_is_the_error_before_it_and_not_the_shutting_down(tmp_path):
    log = tmp_path / "x.log"
    log.write_text(FLOWER)
    assert last_words(log) == f"ERROR :     Exit Code: 305 Failed to activate SuperNode. (more in {log})"
    assert last_words(log, 10_000) == last_words(log), "the log was cut since"
    log.write_text(FLOWER + "INFO:     later\n" * 20 + "\x1b[92mINFO \x1b[0m: killed here\n")
    assert last_words(log) == f"INFO : killed here (more in {log})"
    log.write_text(FLOWER + "INFO: of the next program\n")
    assert last_words(log, len(FLOWER)).startswith("INFO: of the next program")
    log.write_text("ERROR:    Exception\nTraceback (most recent call last):\n  File x\nValueError: why\n")
    assert last_words(log).startswith("ValueError: why")


def test_the_words_of_an_earlier_program_are_not_taken_for_those_of_a_later_one(tmp_path):
    for said in ("ERROR: first", "second"):
        command = [sys.executable, "-c", f"print({said!r})"]
        with running("x", command, os.environ, tmp_path / "x.log", tmp_path) as program:
            program.process.wait()
            assert program.last_words().startswith(said)


EXPIRED = """
import os, socket, sys, time
held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(0.3)
with open("times", "a") as file:
    file.write("x")
if os.path.getsize("times") < 4:
    print("ERROR :     SSL/TLS handshake error detected.")
    print("ERROR :     [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1)")
    raise SystemExit(1)
print("INFO :      SuperNode ID: 1", flush=True)
time.sleep(60)
"""


def test_a_node_that_refuses_the_certificate_is_started_again_until_it_is_renewed_and_that_is_told_once(
    own, monkeypatch
):
    config, stop, told = config_with(own, monkeypatch, "0", EXPIRED), threading.Event(), []

    def tell(text):
        told.append(text)
        if "again" in text.split("(")[0]:
            stop.set()

    threading.Timer(20, stop.set).start()
    site_node.keep_node(config, stop, tell)
    assert told == [
        f"cannot reach {config.server}: its certificate has expired; the server's operator renews it: "
        "coterie federate renew FOLDER (the site keeps trying)",
        f"{config.server} is reached again",
    ]


def test_another_end_after_a_refused_certificate_is_told_too(own, monkeypatch):
    code = EXPIRED.replace("SuperNode ID: 1", "nothing").replace("time.sleep(60)", "raise SystemExit('key in use')")
    config, stop, told = config_with(own, monkeypatch, "0", code), threading.Event(), []

    def tell(text):
        told.append(text)
        if len(told) == 2:
            stop.set()

    threading.Timer(20, stop.set).start()
    site_node.keep_node(config, stop, tell)
    assert "its certificate has expired" in told[0]
    assert "key in use" in told[1]


LINGERS = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from coterie.deploy.flower import end_with

def program():
    threading.Thread(target=time.sleep, args=(60,)).start()
    if sys.argv[2] == "raises":
        raise ValueError("why")
    print("ERROR : certificate has expired")

end_with(program)
"""


@pytest.mark.parametrize(("how", "said"), [("returns", "certificate has expired"), ("raises", "ValueError: why")])
def test_the_process_ends_with_flowers_node_although_a_thread_of_it_still_runs(how, said):
    source = str(Path(flower.__file__).parents[2])
    command = [sys.executable, "-c", LINGERS, source, how]
    done = subprocess.run(command, capture_output=True, timeout=20, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stdout + done.stderr


def followed(tmp_path, monkeypatch):
    """A log, and what is told of it with a clock that goes by hand."""
    log, told, clock = tmp_path / "x.log", [], [0.0]
    log.write_text("WARNING :   Connection attempt failed, of an earlier program\n")
    monkeypatch.setattr(reach, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return log, told, clock, reach.Reach("host:9699", log, told.append)


FAILED = "WARNING :   Connection attempt failed, retrying in 0.79 seconds\n"


def test_a_server_that_is_not_reached_is_told_once_and_once_that_it_is_again(tmp_path, monkeypatch):
    log, told, clock, follow = followed(tmp_path, monkeypatch)
    for seconds, text in ((0, FAILED), (29, FAILED), (30, ""), (40, FAILED), (90, FAILED)):
        clock[0] = seconds
        log.write_text(log.read_text() + text)
        follow.look()
        assert bool(told) == bool(follow.problem) == (seconds >= 30)
    (text,) = told
    what = "cannot reach host:9699 for 30 s; is the server running, and is `server` in site.toml right?"
    assert (follow.problem, text) == (what, f"{what} (the site keeps trying)")
    log.write_text("INFO :      Connection successful after 90.00 seconds and 8 tries.\n")
    follow.look()
    assert (follow.problem, told[1:]) == (None, ["host:9699 is reached again"])


def test_a_short_trouble_and_what_an_earlier_program_wrote_are_not_told(tmp_path, monkeypatch):
    log, told, clock, follow = followed(tmp_path, monkeypatch)
    follow.look()
    clock[0] = 100
    follow.look()
    log.write_text(log.read_text() + FAILED + "INFO :      Connection successful after 7.92 seconds and 8 tries.\n")
    follow.look()
    clock[0] = 200
    follow.look()
    assert (told, follow.problem) == ([], None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("certificate is not yet valid", "clocks"),
        ("Hostname mismatch, certificate is not valid for 'a'.", "another host"),
        ("IP address mismatch, certificate is not valid for '10.0.0.1'.", "another host"),
        ("unable to get local issuer certificate", "ca.crt"),
        ("self-signed certificate in certificate chain", "ca.crt"),
        ("some new words", "refused: some new words"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said_in_plain_words(words, said, tmp_path, monkeypatch):
    log, told, _, follow = followed(tmp_path, monkeypatch)
    line = f"ERROR : [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {words} (_ssl.c:1006)\n"
    log.write_text(log.read_text() + line)
    follow.look()
    assert said in told[0]
    assert follow.refused


def test_a_site_that_does_not_reach_its_server_is_not_healthy(own):
    config = load_site(own / "sites" / "bern")
    with running("x", ["sleep", "60"], os.environ, own / "x.log", own) as program:
        assert "cannot reach it" not in node_health(config, program).problems
        assert "cannot reach it" in node_health(config, program, "cannot reach it").problems


def test_a_port_that_another_program_has_is_named_and_not_taken_for_the_nodes_own(own, monkeypatch):
    config = config_with(own, monkeypatch, "60")
    monkeypatch.setattr(site_node.wait_for_port, "__defaults__", (0.3,))
    with (
        socket.create_server(("127.0.0.1", config.port)),
        pytest.raises(FederationError, match=rf"port {config.port} is taken.*`port` in site.toml"),
    ):
        site_node.keep_node(config, threading.Event(), print)


def test_an_earlier_node_that_is_ending_is_waited_for():
    (port,) = free_ports(1)
    held = socket.create_server(("127.0.0.1", port))
    threading.Timer(0.5, held.close).start()
    site_node.wait_for_port(port)
