"""The server's end of Flower against a transport in memory: who is asked, how long, and what becomes of replies."""

from __future__ import annotations

import ast
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore import heartbeat
from flwr.supercore.retry import http_retry
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection

from coterie.deploy import flower, flower_server
from coterie.deploy.flower import RECORD, REPLY, REQUEST
from coterie.deploy.flower_server import EXPIRED, GRACE, FlowerExchange
from coterie.errors import FederationError
from coterie.wire import codec
from coterie.wire.envelope import Channel, Keys

NAMES = ("anna", "bert", "carl")
SERVER, SITES = Keys.make(), {name: Keys.make() for name in NAMES}
HERE = [Channel(name, SERVER, SITES[name].public) for name in NAMES]
THERE = {10 + i: Channel(name, SITES[name], SERVER.public) for i, name in enumerate(NAMES)}
"""The sites' ends, by the number of their node."""


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch):
    """Flower's messages can be made inside a run only."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


class Transport:
    """Nodes 10, 11, ... with these names; ``says`` gives a node's reply, None for none."""

    def __init__(self, names, says, refuses=()) -> None:
        self.there = {name: 10 + i for i, name in enumerate(names)}
        self.says, self.refuses, self.sent = says, refuses, {}

    def nodes(self):
        return self.there

    def send(self, messages):
        numbers = []
        for message in messages:
            node = message.metadata.dst_node_id
            numbers.append(None if node in self.refuses else f"m{node}")
            self.sent[f"m{node}"] = message
        return numbers

    def arrived(self, numbers, seconds):
        for number in reversed(list(numbers)):
            content = self.says(self.sent[number])
            if content is not None:
                self.sent[number].metadata.__dict__["_message_id"] = number
                broken = isinstance(content, FederationError)
                yield number, content if broken else Message(content, reply_to=self.sent[number])
        yield "", Message(RecordDict(), reply_to=next(iter(self.sent.values())))


def record_of(envelope):
    return RecordDict({RECORD: ConfigRecord({REPLY: envelope})})


def echo(message, node=None):
    """What a site says that sends back what it was asked, or another ``node`` in its place."""
    request = message.content[RECORD][REQUEST]
    content = THERE[message.metadata.dst_node_id].open_request(request)
    return record_of(THERE[node or message.metadata.dst_node_id].reply(content, to=request))


def exchange(transport, timeout=0.3):
    news, timed = {}, []
    ask = FlowerExchange(transport, HERE, timeout, on_sites=news.update, on_times=timed.append)
    return ask, news, timed


def test_replies_belong_to_those_who_were_asked_in_whatever_order_they_come():
    ask, news, timed = exchange(Transport(NAMES, echo))
    asked = {i: codec.encode({}, problem=None, to=name) for i, name in ((0, "a"), (2, "ccc"))}
    replies = ask(asked)
    assert replies.answers == asked
    assert replies.missing == {}
    assert news == {"anna": "answered", "carl": "answered"}
    sizes = sum(map(len, asked.values()))
    assert (timed[0]["bytes_down"], timed[0]["bytes_up"], set(timed[0]["answered"])) == (sizes, sizes, {"anna", "carl"})


def test_a_site_that_refuses_is_shown_with_its_reason():
    ask, news, _ = exchange(Transport(NAMES, echo))
    ask({0: codec.encode({}, problem="not allowed here"), 1: b"junk"})
    assert news["anna"] == "not allowed here"
    assert "cannot be read" in news["bert"]


def test_one_that_is_not_there_is_not_waited_for():
    ask, news, timed = exchange(Transport(("anna", "stranger"), echo), timeout=60)
    assert ask({0: b"a", 1: b"b"}).missing == {1: "not connected"}
    assert timed[0]["total"] < 5
    assert news["bert"] == "not connected"


def test_nobody_there_is_an_answer_too():
    ask, _, _ = exchange(Transport((), echo))
    assert ask({0: b"a"}).missing == {0: "not connected"}


def test_one_that_is_late_is_missing_and_the_others_are_not():
    ask, _, _ = exchange(Transport(NAMES, lambda m: None if m.metadata.dst_node_id == 11 else echo(m)))
    replies = ask({0: b"a", 1: b"b"})
    assert (list(replies.answers), replies.missing) == ([0], {1: "no answer within 0.3 s"})


def test_one_that_hangs_is_waited_for_half_as_long_each_time_until_it_answers():
    """A tenth of the time at least: 1, 1/2, 1/4, 1/8, 1/10, 1/10."""
    hanging = {11}
    ask, _, timed = exchange(
        Transport(NAMES, lambda m: None if m.metadata.dst_node_id in hanging else echo(m)), timeout=2
    )
    for share in (1, 0.5, 0.25, 0.125, 0.1, 0.1):
        assert ask({0: b"a", 1: b"b"}).missing == {1: f"no answer within {2 * share:g} s"}
        assert timed[-1]["total"] >= 2 * share
    assert timed[-1]["total"] < 1.5
    assert list(ask({0: b"a"}).answers) == [0]
    hanging.clear()
    assert set(ask({0: b"a", 1: b"b"}).answers) == {0, 1}
    hanging.add(11)
    assert ask({0: b"a", 1: b"b"}).missing == {1: "no answer within 2 s"}


def test_those_who_are_slow_are_waited_for_beside_one_that_hangs():
    looks = []

    def says(message):
        looks.append(message.metadata.dst_node_id)
        return None if message.metadata.dst_node_id == 11 or looks.count(10) < 5 else echo(message)

    ask, _, _ = exchange(Transport(NAMES, says), timeout=1)
    ask({1: b"b"})
    assert list(ask({0: b"a", 1: b"b"}).answers) == [0]


@pytest.mark.parametrize("code", EXPIRED)
def test_a_message_that_flower_no_longer_keeps_is_one_without_an_answer(code):
    ask, _, _ = exchange(Transport(NAMES, lambda m: Error(code=code) if m.metadata.dst_node_id == 11 else echo(m)))
    assert ask({0: b"a", 1: b"b"}).missing == {1: "no answer within 0.3 s"}
    assert ask({0: b"a", 1: b"b"}).missing == {1: "no answer within 0.15 s"}


def test_messages_are_kept_a_little_longer_than_they_are_waited_for():
    transport = Transport(NAMES, echo)
    exchange(transport, timeout=7.5)[0]({0: b"a"})
    assert transport.sent["m10"].metadata.ttl == 7.5 + GRACE


def test_a_message_that_flower_does_not_take_is_said_to_be_too_large():
    ask, _, _ = exchange(Transport(NAMES, echo, refuses=(11,)))
    replies = ask({0: b"a", 1: b"b"})
    assert replies.missing == {1: "could not be sent to; is the message too large?"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (Error(code=5), "went away while it was asked"),
        (Error(code=2, reason="the agent does not answer"), "failed: the agent does not answer"),
        (FederationError("sent a reply of 9 parts"), "sent a reply of 9 parts"),
        (RecordDict(), "sent a message that is none of ours"),
        (RecordDict({RECORD: ConfigRecord({REPLY: "text"})}), "sent no bytes"),
        (RecordDict({RECORD: ConfigRecord({"other": b"x"})}), "sent a message that is none of ours"),
    ],
)
def test_what_is_no_reply_of_ours_is_a_reason(content, why):
    ask, news, _ = exchange(Transport(NAMES, lambda message: content))
    assert ask({0: b"a"}).missing == {0: why}
    assert news["anna"] == why


NOT_SIGNED = "not signed by its sender's key for this exchange"


def test_a_reply_that_another_site_has_signed_is_not_the_sites():
    ask, news, _ = exchange(Transport(NAMES, lambda message: echo(message, node=12)))
    replies = ask({1: b"b", 2: b"c"})
    assert replies.answers == {2: b"c"}
    assert NOT_SIGNED in replies.missing[1]
    assert NOT_SIGNED in news["bert"]


def test_a_reply_to_an_older_request_is_no_reply_though_the_site_signed_it():
    kept = []

    def replay(message):
        kept.append(echo(message))
        return kept[0]

    ask, _, _ = exchange(Transport(NAMES, replay))
    assert ask({0: b"round 1"}).answers == {0: b"round 1"}
    replies = ask({0: b"round 1"})
    assert not replies.answers
    assert NOT_SIGNED in replies.missing[0]


def test_a_reply_in_no_envelope_is_a_missing_row():
    ask, _, _ = exchange(Transport(NAMES, lambda message: record_of(codec.encode({}, problem=None))))
    assert "in no envelope of coterie's" in ask({0: b"a"}).missing[0]


def test_no_two_requests_are_alike_so_that_nobody_guesses_the_number_of_a_message():
    transport = Transport(NAMES, echo)
    ask, _, _ = exchange(transport)
    ask(dict.fromkeys(range(3), b"the same"))
    before = {bytes(message.content[RECORD][REQUEST]) for message in transport.sent.values()}
    ask(dict.fromkeys(range(3), b"the same"))
    after = {bytes(message.content[RECORD][REQUEST]) for message in transport.sent.values()}
    assert len(before | after) == 6
    assert not any(b"the same" in envelope for envelope in before | after)


class TestRequestsAreSealedInParts:
    """Sealing makes one message per site of equal requests; only a part of them is in memory at a time."""

    @pytest.fixture
    def ask(self, monkeypatch):
        """Ask all sites with ``room`` for sealed bytes; return the replies and the number of messages in each part."""

        def ask_all(room, requests, refuses=()):
            monkeypatch.setattr(flower_server, "MOST_SEALED_BYTES", room)
            transport, parts = Transport(NAMES, echo, refuses), []
            send = transport.send
            transport.send = lambda messages: parts.append(len(messages)) or send(messages)
            return exchange(transport)[0](requests), parts

        return ask_all

    @pytest.mark.parametrize(("room", "sizes"), [(3000, [3]), (2999, [2, 1]), (1000, [1, 1, 1]), (10, [1, 1, 1])])
    def test_of_a_limited_size_and_all_are_answered(self, ask, room, sizes):
        requests = dict.fromkeys(range(3), b"x" * 1000)
        replies, parts = ask(room, requests)
        assert parts == sizes
        assert replies == (requests, {})

    def test_and_one_that_flower_does_not_take_is_named_whatever_its_part(self, ask):
        replies, parts = ask(1, dict.fromkeys(range(3), b"x"), refuses=(11,))
        assert parts == [1, 1, 1]
        assert list(replies.answers) == [2, 0]
        assert replies.missing == {1: "could not be sent to; is the message too large?"}

    def test_and_none_are_sealed_before_those_ahead_are_sent(self, monkeypatch):
        events = []
        seal = Channel.request
        monkeypatch.setattr(flower_server, "MOST_SEALED_BYTES", 1)
        monkeypatch.setattr(Channel, "request", lambda *words: events.append("seal") or seal(*words))
        transport = Transport(NAMES, echo)
        send = transport.send
        transport.send = lambda messages: events.append("send") or send(messages)
        exchange(transport)[0](dict.fromkeys(range(3), b"x"))
        assert events == ["seal", "send"] * 3


def answered(code):
    request = httpx.Request("POST", "https://localhost")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(code, request=request))


@pytest.mark.parametrize("fault", [answered(500), answered(503), httpx.ConnectError("gone"), httpx.ReadTimeout("late")])
def test_a_server_of_flowers_that_is_busy_is_asked_again(monkeypatch, fault):
    monkeypatch.setattr(flower_server, "PAUSE", 0.01)
    tries = [fault, fault, 7]
    assert flower_server.retry(lambda: given(tries)) == 7
    assert tries == []


@pytest.mark.parametrize(("fault", "tries"), [(answered(401), 1), (answered(500), 3)])
def test_but_not_for_ever_and_not_where_it_has_said_no(monkeypatch, fault, tries):
    clock = [0.0]
    monkeypatch.setattr(flower_server.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(flower_server.time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    left = [fault] * 9
    with pytest.raises(httpx.HTTPStatusError):
        flower_server.retry(lambda: given(left), 1.5 * flower_server.PAUSE)
    assert len(left) == 9 - tries


def test_the_program_of_a_node_loads_flower_and_neither_torch_nor_data(tmp_path):
    """It runs beside the agent at every site; torch alone would take some hundred megabytes."""
    command = flower.supernode("localhost:1", 2, ca=tmp_path, key=tmp_path, secret=tmp_path)
    program = Path(command[command.index("-P") + 1])
    assert program.exists()
    top = [node for node in ast.parse(program.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    environment = {**flower.environment(tmp_path), flower.AGENT: str(tmp_path / "agent.sock")}
    shown = subprocess.run([*command[:4], "--help"], capture_output=True, text=True, check=True, env=environment).stdout
    assert "--superlink" in shown
    code = (
        "import sys, coterie.deploy.flower_site, coterie.deploy.carried, coterie.wire.unix_socket; print(*sys.modules)"
    )
    loaded = subprocess.run([command[0], "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "polars", "pandas", "sklearn", "scipy"} & {*loaded}


def given(values):
    value = values.pop(0)
    if isinstance(value, Exception):
        raise value
    return value


@pytest.fixture
def _flower_as_it_was(monkeypatch):
    """What a SuperNode changes of Flower in its own process is changed back."""
    for module in (heartbeat, http_retry, fleet_http_connection):
        for name in {"MAX_RETRY_DELAY", "HEARTBEAT_DEFAULT_INTERVAL", "exponential"} & set(vars(module)):
            monkeypatch.setattr(module, name, getattr(module, name))


@pytest.mark.usefixtures("_flower_as_it_was")
class TestReconnection:
    """A SuperNode whose server is away."""

    @pytest.mark.parametrize(
        "make", [http_retry.make_simple_http_retry_invoker, lambda: heartbeat.HeartbeatSender(bool)._retry_invoker]
    )
    def test_it_tries_every_three_seconds_at_least(self, make):
        flower.shorten_reconnection()
        assert list(islice(make().wait_gen_factory(), 5)) == [1, 2, 3, 3, 3]

    @pytest.mark.parametrize(("asked", "expected"), [(None, 30), ("12", 12)])
    def test_its_signs_of_life_are_as_often_as_the_environment_says(self, asked, expected, monkeypatch):
        monkeypatch.delenv(flower.HEARTBEAT, raising=False)
        if asked is not None:
            monkeypatch.setenv(flower.HEARTBEAT, asked)
        flower.shorten_reconnection()
        assert {heartbeat.HEARTBEAT_DEFAULT_INTERVAL, fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL} == {expected}
