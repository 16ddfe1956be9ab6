"""A site's end of Flower: a message goes to the agent and its answer back, and nothing of the server's is run."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

from coterie.deploy.carried import Carried, Counts, read_counts
from coterie.deploy.flower import RECORD, REPLY, REQUEST
from coterie.deploy.flower_site import Carrier

RUN = 7


@pytest.fixture(autouse=True)
def _a_run(monkeypatch):
    """Flower's messages are made for the run of the process."""
    for name, value in (("_run_id", RUN), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value, raising=False)


class Server:
    """What the SuperNode gives to the two steps: one message, and what came back; whatever else it asks for fails."""

    def __init__(self, content: object = b"ask", run_ends: bool = False) -> None:
        message = Message(RecordDict({RECORD: ConfigRecord({REQUEST: content})}), dst_node_id=3, message_type="query")
        message.metadata.__dict__ |= {"_run_id": RUN, "_message_id": message.object_id, "_src_node_id": 1}
        self.message, self.run_ends = message, run_ends
        self.contents = {key: each.deflate() for key, each in get_all_nested_objects(message).items()}
        self.confirmed, self.pushed, self.sent = [], {}, []

    def steps(self) -> dict:
        never = {name: lambda *_: pytest.fail("it is never fetched") for name in ("get_run", "get_fab")}
        return {
            **never,
            "receive": lambda: (self.message, get_object_tree(self.message)),
            "pull_object": self.pull_object,
            "confirm_message_received": lambda *each: self.confirmed.append(each),
        }

    def pull_object(self, run: int, number: str) -> bytes:
        if self.run_ends:
            raise RunNotRunningException
        assert run == RUN
        return self.contents[number]

    def send(self, reply, tree, seconds):
        self.sent.append((reply, seconds))
        return {each.object_id for each in get_all_nested_objects(reply).values()}, "session"

    def push_object(self, run, session, number, content):
        assert (run, session) == (RUN, "session")
        self.pushed[number] = content

    def answer(self) -> Message:
        (reply, _), number = self.sent[0], self.sent[0][0].metadata.message_id
        assert reply.metadata.reply_to_message_id == self.message.metadata.message_id
        return inflate_object_from_contents(number, dict(self.pushed))


def carried(server: Server, answer) -> Message:
    carrier = Carrier(answer)
    assert carrier.pull(**server.steps()) == RUN
    carrier.push(send=server.send, push_object=server.push_object, state=None, object_store=None)
    return server.answer()


def test_the_agent_gets_the_bytes_and_the_server_its_answer():
    server, asked = Server(), []

    def answer(request: bytes) -> bytes:
        asked.append(request)
        return b"told"

    reply = carried(server, answer)
    assert asked == [b"ask"]
    assert reply.content[RECORD][REPLY] == b"told"
    assert server.confirmed == [(RUN, server.message.metadata.message_id)]


def test_an_agent_that_is_away_and_a_message_that_is_none_of_ours_are_said():
    def away(request: bytes) -> bytes:
        raise ConnectionRefusedError("/secret/path")

    assert carried(Server(), away).error.reason == "the site's agent does not answer; its log says why"
    never = carried(Server(content="text"), lambda request: pytest.fail("not the agent's"))
    assert never.error.reason == "this site answers coterie's messages only"


def test_a_run_that_is_over_is_no_message():
    assert Carrier(lambda request: b"").pull(**Server(run_ends=True).steps()) is None
    nothing = {**Server().steps(), "receive": lambda: None}
    assert Carrier(lambda request: b"").pull(**nothing) is None


def test_a_message_that_cannot_be_fetched_does_not_end_the_node_but_a_lost_server_does():
    broken = {**Server().steps(), "confirm_message_received": lambda *_: 1 / 0}
    assert Carrier(lambda request: b"").pull(**broken) is None
    lost = {**Server().steps(), "receive": lambda: 1 / 0}
    with pytest.raises(ZeroDivisionError):
        Carrier(lambda request: b"").pull(**lost)


def test_an_answer_that_cannot_be_sent_is_lost_and_no_more():
    server = Server()
    carrier = Carrier(lambda request: b"told")
    carrier.pull(**server.steps())
    carrier.push(send=lambda *_: 1 / 0, push_object=server.push_object)
    assert carrier.reply is None


def test_counts_survive_in_a_file_and_a_damaged_one_is_none(tmp_path):
    path = tmp_path / "carried.json"
    assert read_counts(path) == Counts()
    carry = Carried(lambda request: b"four", path)
    carry(b"abc")
    carry(b"abc")
    found = read_counts(path)
    assert (found.messages, found.failures, found.bytes_in, found.bytes_out) == (2, 0, 6, 8)
    path.write_text("[")
    assert read_counts(path) == Counts()
