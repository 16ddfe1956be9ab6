"""Flower's node of a site is started again when it ends, and an error if it cannot start at all."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest

from coterie.deploy import flower, site_node
from coterie.deploy.config import load_site
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
