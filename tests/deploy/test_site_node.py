"""Flower's node of a site is started again when it ends, and an error if it cannot start at all."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace

import pytest

from coterie.deploy import flower, site_node
from coterie.deploy.config import load_site
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
