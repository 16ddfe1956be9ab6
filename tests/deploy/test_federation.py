"""A real federation on loopback: Flower's SuperLink behind nginx, four sites with keys, and what can go wrong."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from coterie.data import load
from coterie.experiment import run_settings
from coterie.federate import agent
from coterie.federate.audit import read_audit
from coterie.federate.board import read_board
from coterie.federate.client import build_site
from coterie.federate.config import load_site
from coterie.federate.following import follow
from coterie.federate.server import make_order, online, serving, submit
from coterie.federate.trial import part_running, trial
from coterie.results.record import STATE, load_rounds, load_state
from coterie.runtimes import codec
from coterie.settings import Settings

SITES = ("client-000", "client-001", "client-002", "client-003")
SHORT = Settings("wecfl", partition="rotation(0,180)", clients=4, clusters=2, model="mlp(16)", rounds=5, eval_every=9)


@pytest.fixture(scope="module")
def data():
    return load("digits").partition("rotation(0,180)", clients=4, seed=1)


@pytest.fixture(scope="module")
def federation(data, nginx, tmp_path_factory):
    """Server, door and four sites; a round waits at most 25 s for an answer, and three sites are enough."""
    folder = tmp_path_factory.mktemp("f") / "f"
    with trial(data, folder, configure={"timeout": 25, "minimum": 3}) as found:
        yield found


def train(federation, settings, out):
    """A run to its end; its state and its records."""
    order = make_order(federation.place, settings, out)
    submit(federation.place, order)
    follow(federation.place, lambda record: None)
    return load_state(out / STATE), load_rounds(out)


def assert_same(settings, data, state):
    """Bit for bit what the simulator gives with the plan of one client at a time."""
    expected = run_settings(replace(settings, plan="workers", threads=1), data=data).state
    assert state.labels.tolist() == expected.labels.tolist()
    for ours, theirs in zip(state.stack, expected.stack, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("algorithm", ["wecfl", "ifca+cam", "ocfl-hdbscan"])
def test_a_federation_gives_what_the_simulator_gives(federation, data, tmp_path, algorithm):
    settings = replace(SHORT, algorithm=algorithm)
    state, records = train(federation, settings, tmp_path / "run")
    assert [record.get("missing") for record in records] == [None] * 5
    assert_same(settings, data, state)
