"""Sites that do harm, in a real federation: one that answers for another, one that hangs, one that sends too much."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from federations import another_agent, begin, held, site_folder, train, wait_for
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_children_ids_from_object_content,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from coterie.data import load
from coterie.deploy.certificates import site_channel
from coterie.deploy.config import load_site
from coterie.deploy.flower import RECORD, REPLY, REQUEST
from coterie.deploy.flower_server import EXCHANGES
from coterie.deploy.run_control import follow
from coterie.deploy.status import read_board
from coterie.deploy.trial import has_nginx, trial
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import STATE, load_rounds, load_state
from coterie.experiments.settings import Settings
from coterie.wire import codec

VICTIM, OTHER, ATTACKER = SITES = ("client-000", "client-001", "client-002")
SHORT = Settings("fedavg", partition="iid", clients=3, model="mlp(16)", rounds=3, eval_every=9)
LARGEST_MB = 130
"""Megabytes of the largest request that the door lets through."""


@pytest.fixture(scope="module")
def data():
    return load("digits").partition("iid", clients=3, seed=1)


@pytest.fixture(scope="module")
def federation(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("f") / "f"
    with trial(data, folder, proxy=has_nginx(), configure={"largest_mb": LARGEST_MB}) as found:
        yield found


@pytest.fixture
def taking_place_of(federation):
    """Put another agent in the place of a site's for one test; the honest one is found again afterwards."""
    with ExitStack() as stack:
        yield lambda name, make: stack.enter_context(another_agent(federation, name, make))


class Forger:
    """A registered site that uses its own key to speak for another, with Flower's own programs."""

    def __init__(self, federation) -> None:
        folder, place = site_folder(federation, ATTACKER), federation.place
        key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
        self.database = place.database
        nodes = {name: int(node["node"]) for name, node in json.loads(place.nodes.read_text()).items()}
        self.node, self.victim = Node(node_id=nodes[ATTACKER]), nodes[VICTIM]
        self.client = FleetHttpClient.from_server_address(
            load_site(folder).server,
            False,
            (folder / "ca.crt").read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )

    def metadata(self, node):
        """What Flower knows of the newest message to a node; of its own message a site is told all of it."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as base:
            base.row_factory = sqlite3.Row
            query = (
                "select message_ins.*, task_id as src_task_id from message_ins join task using (run_id) "
                "where dst_node_id = ? order by created_at desc limit 1"
            )
            row = dict(base.execute(query, (node - (1 << 64) if node >= 1 << 63 else node,)).fetchone())
        numbers = {name: row[name] % (1 << 64) for name in ("run_id", "src_node_id", "dst_node_id", "src_task_id")}
        kept = {name: row[name] for name in ("message_id", "group_id", "created_at", "ttl", "message_type")}
        return Metadata(**numbers, **kept, reply_to_message_id="")

    def guesses(self, ours, content, microseconds):
        """The victim's message as it would be if it held this content and was made a little before ours."""
        made = datetime.fromtimestamp(ours.created_at, UTC)
        for back in range(microseconds):
            ours.__dict__["_dst_node_id"] = self.victim
            ours.__dict__["_created_at"] = (made - timedelta(microseconds=back)).timestamp()
            guess = Message(RecordDict({RECORD: ConfigRecord({REQUEST: content})}), metadata=ours)
            guess.metadata.__dict__["_message_id"] = guess.object_id
            yield guess

    def forge(self, message, envelope):
        """Reply to a message of the victim's; whether Flower took it."""
        reply = Message(RecordDict({RECORD: ConfigRecord({REPLY: envelope})}), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        pushed = self.client.PushMessages(
            PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[1.0],
            )
        )
        parts = {number: part.deflate() for number, part in get_all_nested_objects(reply).items()}
        self.push_parts(message.metadata.run_id, pushed, parts)
        return bool(pushed.objects_to_push)

    def announce(self, known, content=None):
        """Reply to our own message with one part, which is sent if ``content`` says what it is."""
        number = get_object_id(b"nothing" if content is None else content)
        reply = Message(RecordDict(), reply_to=Message(RecordDict(), metadata=known))
        reply.metadata.__dict__["_message_id"] = number
        pushed = self.client.PushMessages(
            PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[ObjectTree(object_id=number)],
                clientapp_runtime_list=[1.0],
            )
        )
        if content is not None:
            self.push_parts(known.run_id, pushed, {number: content})

    def push_parts(self, run, pushed, parts):
        """Send the parts of a reply that Flower asks for."""
        for number in pushed.objects_to_push:
            self.client.PushObject(
                PushObjectRequest(
                    node=self.node,
                    run_id=run,
                    session_id=pushed.session_id,
                    object_id=number,
                    object_content=parts[number],
                )
            )

    def steal(self, run, number):
        """What Flower gives of an object and all below it, to a site that names its number."""
        wanted = PullObjectRequest(node=self.node, run_id=run, object_id=number)
        content = self.client.PullObject(wanted).object_content
        below = get_object_children_ids_from_object_content(content) if content else []
        return [content, *(each for child in below for each in self.steal(run, child))]


@dataclass(frozen=True)
class Listening:
    """An agent that answers as it should and keeps what it was sent: metadata, envelope, and what is in it."""

    sealed: object
    forger: Forger
    seen: list

    def answer(self, request):
        known = self.forger.metadata(self.forger.node.node_id)
        self.seen.append((known, request, self.sealed.channel.open_request(request)))
        return self.sealed.answer(request)

    def refuse(self, size, beginning):
        return self.sealed.refuse(size, beginning)

    def decline(self, request, why):
        return self.sealed.decline(request, why)


@pytest.fixture(scope="module")
def forger(federation):
    found = Forger(federation)
    with found.client:
        yield found


def forged_reply(asked, data):
    """A model of nothing but ones, in the form that was asked for."""
    arrays, _ = codec.decode(asked)
    row = np.ones_like(arrays["params"][:1])
    reply = {"rows": np.zeros(1, np.int64), "examples": data.train.sizes[:1], "training_loss": np.zeros(1)}
    return codec.encode({**reply, "params": row, "buffers": arrays["buffers"][:1]}, problem=None)


def test_a_site_that_guesses_the_number_of_anothers_message_is_not_taken_for_it(
    federation, forger, data, taking_place_of, tmp_path
):
    """As it was done: the same content as our own message, made at one of the 240 microseconds before ours."""
    seen: list = []
    taking_place_of(ATTACKER, lambda sealed: Listening(sealed, forger, seen))
    begin(federation, SHORT, tmp_path / "run", timeout=60)
    with held(federation.sites[VICTIM]["agent"]):
        before = len(seen)
        wait_for(lambda: len(seen) > before and federation_says(federation, VICTIM) == "asked")
        ours, *contents = seen[-1]
        forged = forged_reply(contents[-1], data)
        taken = [forger.forge(guess, forged) for known in contents for guess in forger.guesses(ours, known, 240)]
    follow(federation.place, lambda record: None)
    assert len(taken) == 480
    assert not any(taken)
    assert not any("missing" in record for record in load_rounds(tmp_path / "run"))
    expected = run_settings(replace(SHORT, plan="native", threads=1), data=data).state
    np.testing.assert_array_equal(load_state(tmp_path / "run" / STATE).stack.params, expected.stack.params)


def federation_says(federation, name):
    return read_board(federation.place.board)["sites"][name]["now"]


def test_a_site_that_knows_the_number_of_anothers_message_can_neither_read_nor_answer_it(
    federation, forger, data, taking_place_of, tmp_path
):
    """Flower gives the message to any site that names it, and takes the reply: what we believe is another matter."""
    seen: list = []
    taking_place_of(ATTACKER, lambda sealed: Listening(sealed, forger, seen))
    begin(federation, SHORT, tmp_path / "run", timeout=60)
    with held(federation.sites[VICTIM]["node"]):
        before = len(seen)
        wait_for(lambda: len(seen) > before and federation_says(federation, VICTIM) == "asked")
        known = forger.metadata(forger.victim)
        stolen = b"".join(forger.steal(known.run_id, known.message_id))
        asked = seen[-1][-1]
        channel = site_channel(site_folder(federation, ATTACKER), VICTIM)
        forged = channel.reply(forged_reply(asked, data), to=stolen[stolen.index(b"coterie1") :])
        assert forger.forge(Message(RecordDict(), metadata=known), forged)
    follow(federation.place, lambda record: None)
    shared = codec.decode(asked)[0]["params"].tobytes()
    assert len(stolen) > len(shared), "Flower no longer gives it away: say so in the threat model"
    assert shared[:64] not in stolen
    missing = [record.get("missing", {}) for record in load_rounds(tmp_path / "run")]
    refused = [each for each in missing if each]
    assert [list(each) for each in refused] == [[VICTIM]]
    assert "not signed by its sender's key for this exchange" in refused[0][VICTIM]


def waits(out):
    """How many seconds each exchange of a run took."""
    return [json.loads(line)["total"] for line in (out / EXCHANGES).read_text().splitlines()]


SLACK = 5
"""Seconds that a busy machine may take beyond the time set."""


def test_a_site_that_hangs_costs_the_time_set_and_half_of_it_each_time_more(federation, tmp_path):
    begin(federation, replace(SHORT, rounds=5), tmp_path / "run", timeout=8)
    with held(federation.sites[OTHER]["agent"]):
        follow(federation.place, lambda record: None)
    whys = [record.get("missing", {}).get(OTHER) for record in load_rounds(tmp_path / "run")]
    assert len(whys) == 5
    late = [float(re.fullmatch(r"no answer within (.*) s", why)[1]) for why in whys if why]
    assert len(late) >= 3
    assert late[0] == 8
    assert late == sorted(set(late), reverse=True)
    assert set(late) <= {8, 4, 2, 1, 0.8}
    assert max(waits(tmp_path / "run")) < 8 + SLACK
    assert waits(tmp_path / "run")[-1] < late[-1] + SLACK


@dataclass(frozen=True)
class Greedy:
    """An agent that answers the hello and then sends a reply of the megabytes of the round, whatever it is asked."""

    sealed: object

    def answer(self, request):
        honest = self.sealed.answer(request)
        asked = codec.unwrap(self.sealed.channel.open_request(request)).header
        if asked["kind"] == "hello":
            return honest
        size = of_round(MEGABYTES, asked) * 1_000_000
        flood = codec.encode({"params": np.zeros(size // 4, np.float32)}, problem=None)
        return self.sealed.channel.reply(flood, to=request)

    refuse, decline = Listening.refuse, Listening.decline


def of_round(values, asked):
    """The value for the round of a request; the last one for what comes after."""
    return values[min(asked["key"][1], len(values) - 1)]


MEGABYTES = (100, 100, LARGEST_MB + 20, LARGEST_MB + 20)


def test_a_site_that_sends_too_much_costs_at_most_the_time_set(federation, nginx, taking_place_of, tmp_path):
    """Those of 100 megabytes come in and are not looked at; the door lets none through that is above its limit."""
    taking_place_of(OTHER, Greedy)
    _, records = train(federation, replace(SHORT, rounds=len(MEGABYTES)), tmp_path / "run", timeout=16)
    whys = [record["missing"] for record in records]
    assert [list(each) for each in whys] == [[OTHER]] * len(MEGABYTES)
    assert all(re.search("no answer within|did not send all|100000.* bytes; at most", each[OTHER]) for each in whys)
    assert not any("bytes; at most" in each[OTHER] for each in whys[2:])
    assert max(waits(tmp_path / "run")) < 16 + SLACK


@dataclass(frozen=True)
class Teasing:
    """An agent that answers the hello, and then announces to Flower a reply of one part of its own making."""

    sealed: object
    forger: Forger

    def answer(self, request):
        asked = codec.unwrap(self.sealed.channel.open_request(request)).header
        if asked["kind"] == "task":
            content, _ = of_round(TEASES, asked)
            self.forger.announce(self.forger.metadata(self.forger.node.node_id), content)
        return self.sealed.answer(request)

    refuse, decline = Listening.refuse, Listening.decline


NEVER_SENT = (None, "announced a reply and did not send all of it")
GARBAGE = (b"Message 0 7\0garbage", "cannot be put together")
TEASES = (NEVER_SENT, NEVER_SENT, NEVER_SENT, GARBAGE, GARBAGE, GARBAGE)


def test_a_reply_that_is_announced_and_never_sent_or_is_garbage_keeps_nobody_waiting(
    federation, forger, taking_place_of, tmp_path
):
    taking_place_of(ATTACKER, lambda sealed: Teasing(sealed, forger))
    _, records = train(federation, replace(SHORT, rounds=len(TEASES)), tmp_path / "run", timeout=8)
    whys = [record["missing"] for record in records]
    assert [list(each) for each in whys] == [[ATTACKER]] * len(TEASES)
    assert max(waits(tmp_path / "run")) < 8 + SLACK
    for each, (_, why) in zip(whys, TEASES, strict=True):
        assert why in each[ATTACKER] or "no answer within" in each[ATTACKER]
