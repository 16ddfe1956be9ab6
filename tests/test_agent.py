"""The agent's socket: real connections, good callers and bad ones, and how it ends."""

from __future__ import annotations

import ast
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from coterie.deploy.audit import Audit, read_audit
from coterie.deploy.policy import Policy
from coterie.deploy.processes import stop_on_signals
from coterie.deploy.site_answers import Site
from coterie.deploy.site_programs import BEGINNING, serve
from coterie.errors import UsageError
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key
from coterie.wire import codec, unix_socket
from coterie.wire import requests as answering
from coterie.wire.unix_socket import call

HELLO = answering.pack_hello("run")


@pytest.fixture
def folder():
    """A short path: those of sockets may have about 100 letters."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def site(images, folder):
    own = images(sizes=(24, 30)).select([0])
    return Site("client-0", own, Policy(largest_mb=1), Audit(folder / "audit.jsonl"))


@contextmanager
def serving(site, path, timeout: float = 5.0):
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(site, path, stop), kwargs={"timeout": timeout, "ready": ready.set})
    thread.start()
    assert ready.wait(5)
    try:
        yield stop
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


def header(reply: bytes) -> dict:
    return codec.decode(reply)[1]


def test_messages_are_answered_and_the_socket_is_for_its_group_only(site, folder):
    path = folder / "run" / "agent.sock"
    with serving(site, path):
        assert header(call(path, HELLO, 5))["site"]["name"] == "client-0"
        model, task = build_model("mlp(4)", (1, 8, 8), 4), Task(fit=(Fit(steps=2),))
        stack = Stack(*(part[None] for part in model.initial(1)))
        sent = answering.pack_task("run", task, Key(1, 0), model, message.down(task, Sent(stack), 0, model.layout))
        arrays, words = codec.decode(call(path, sent, 20))
        assert words == {"problem": None}
        expected = codec.decode(site.answer(sent))[0]
        np.testing.assert_array_equal(arrays["params"], expected["params"])
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
    assert not path.exists()


def test_a_socket_that_was_left_behind_is_replaced(site, folder):
    path = folder / "agent.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    with serving(site, path):
        assert header(call(path, HELLO, 5))["problem"] is None


def test_a_second_agent_is_refused_and_the_first_goes_on(site, folder):
    path = folder / "agent.sock"
    with serving(site, path):
        with pytest.raises(UsageError, match=r"another agent answers at .*stop it"):
            serve(site, path, threading.Event())
        assert header(call(path, HELLO, 5))["problem"] is None


def test_what_is_no_socket_is_never_removed(site, folder):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is no socket"):
        serve(site, folder / "notes.txt", threading.Event())
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_that_anybody_may_write_to_is_refused(site, folder):
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    with pytest.raises(UsageError, match="anybody may write"):
        serve(site, folder / "open" / "agent.sock", threading.Event())


def test_a_path_that_is_too_long_is_refused(site, folder):
    with pytest.raises(UsageError, match="give a shorter or another path"):
        serve(site, folder / ("x" * 120), threading.Event())


@pytest.mark.parametrize("sent", [b"", b"\0\0\0", (50).to_bytes(8, "big") + b"half"])
def test_a_caller_that_stops_is_dropped_and_keeps_nobody_waiting(site, folder, sent):
    path = folder / "agent.sock"
    with serving(site, path, timeout=0.5), socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(path))
        slow.sendall(sent)
        assert header(call(path, HELLO, 5))["problem"] is None
        slow.settimeout(5)
        assert slow.recv(1) == b""
    assert len(read_audit(site.audit.path)) == 1


def test_a_byte_now_and_then_does_not_hold_a_place_for_ever(site, folder):
    path = folder / "agent.sock"
    with serving(site, path, timeout=0.5), socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(path))
        slow.sendall((10**6).to_bytes(8, "big"))
        for _ in range(100):
            time.sleep(0.05)
            try:
                slow.sendall(b"x")
            except OSError:
                return
        pytest.fail("a caller that sends a byte now and then is still there after 5 seconds")


def test_a_message_above_the_policy_is_refused_after_its_beginning(site, folder):
    path = folder / "agent.sock"
    with serving(site, path):
        with socket.socket(socket.AF_UNIX) as greedy:
            greedy.connect(str(path))
            greedy.sendall((1_000_001).to_bytes(8, "big") + bytes(BEGINNING))
            greedy.settimeout(5)
            assert int.from_bytes(greedy.recv(8), "big") < 1000
        assert "largest_mb in its policy.toml" in header(call(path, b"x" * 1_000_001, 5))["problem"]
        assert "cannot be read" in header(call(path, b"x" * 1_000_000, 5))["problem"]
    lines = read_audit(site.audit.path)
    assert [line["outcome"] for line in lines] == ["refused", "refused", "failed"]
    assert [line["bytes_in"] for line in lines] == [1_000_001, 1_000_001, 1_000_000]


def test_many_callers_are_answered_one_at_a_time(site, folder):
    path, busy, most = folder / "agent.sock", [], []
    answer = site.answer

    def slow(request: bytes) -> bytes:
        busy.append(1)
        most.append(len(busy))
        time.sleep(0.02)
        reply = answer(request)
        busy.pop()
        return reply

    site.answer = slow
    with serving(site, path), ThreadPoolExecutor(20) as callers:
        replies = list(callers.map(lambda _: header(call(path, HELLO, 20)), range(20)))
    assert all(reply["problem"] is None for reply in replies)
    assert most == [1] * 20


def test_a_caller_that_hangs_up_does_no_harm(site, folder):
    path = folder / "agent.sock"
    with serving(site, path):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as rude:
                rude.connect(str(path))
                rude.sendall(len(HELLO).to_bytes(8, "big") + HELLO)
        assert header(call(path, HELLO, 5))["problem"] is None


def test_a_stop_drops_those_who_have_not_finished_at_once(site, folder):
    path = folder / "agent.sock"
    with socket.socket(socket.AF_UNIX) as slow:
        with serving(site, path, timeout=60) as stop:
            slow.connect(str(path))
            slow.sendall(b"\0\0")
            time.sleep(0.3)
            begun = time.monotonic()
            stop.set()
        assert time.monotonic() - begun < 3


def test_an_agent_that_is_not_there_is_an_error(folder):
    with pytest.raises(OSError, match=r"does not answer .*; is it running"):
        call(folder / "agent.sock", HELLO, 1)


def test_an_agent_that_is_silent_is_an_error(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "agent.sock"))
        listener.listen()
        with pytest.raises(TimeoutError, match="no answer in time"):
            call(folder / "agent.sock", HELLO, 0.2)


class Slow:
    """A site that takes its time."""

    policy = Policy()

    def __init__(self) -> None:
        self.begun, self.done = threading.Event(), threading.Event()

    def refuse(self, _: int, __: bytes) -> None:
        return None

    def decline(self, _: bytes, why: str) -> bytes:
        return codec.encode({}, problem=why)

    def answer(self, _: bytes) -> bytes:
        self.begun.set()
        time.sleep(0.5)
        self.done.set()
        return codec.encode({}, problem=None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_agent_after_the_task_that_is_running(folder, number):
    path, site, stop, ready = folder / "agent.sock", Slow(), threading.Event(), threading.Event()
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    def ask_and_kill() -> tuple[dict, dict]:
        assert ready.wait(5)
        with ThreadPoolExecutor(2) as callers:
            first = callers.submit(call, path, HELLO, 20)
            assert site.begun.wait(5)
            second = callers.submit(call, path, HELLO, 20)
            time.sleep(0.1)
            os.kill(os.getpid(), number)
            return header(first.result()), header(second.result())

    try:
        stop_on_signals(stop)
        with ThreadPoolExecutor(1) as other:
            replies = other.submit(ask_and_kill)
            serve(site, path, stop, ready=ready.set)
            assert site.done.is_set()
            first, second = replies.result()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert first == {"problem": None}
    assert "stopping" in second["problem"]
    assert not path.exists()


def test_what_calls_an_agent_needs_the_standard_library_only():
    """The small process that the network side starts for every message must not load torch."""
    nodes = list(ast.walk(ast.parse(Path(unix_socket.__file__).read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "socket", "time", "contextlib"}
