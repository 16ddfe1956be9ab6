"""Envelopes: opened by whom they are for, believed from whom they are by, and nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("cryptography")

from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import FederationError, UsageError
from coterie.wire.envelope import HEAD, OVERHEAD, Channel, Keys, PublicKeys, seal, unseal
from coterie.wire.requests import pack_hello

SERVER, BERN, CHUR = Keys.make(), Keys.make(), Keys.make()
HERE, THERE = Channel("bern", SERVER, BERN.public), Channel("bern", BERN, SERVER.public)
PURPOSE = bytes(32)


@given(st.binary(max_size=3000))
def test_what_is_sealed_comes_out_again_and_takes_as_many_bytes_more_as_said(content):
    envelope = seal(content, SERVER, BERN.public, PURPOSE)
    assert unseal(envelope, BERN, SERVER.public, PURPOSE) == content
    assert len(envelope) == len(content) + OVERHEAD


REQUEST = HERE.request(b"train, please")
REPLY = THERE.reply(b"done, as asked", REQUEST)

WRONG = {
    "read by another site": lambda: Channel("bern", CHUR, SERVER.public).open_request(REQUEST),
    "a request by another site": lambda: THERE.open_request(Channel("bern", CHUR, BERN.public).request(b"x")),
    "a reply by another site": lambda: HERE.open_reply(
        Channel("bern", CHUR, SERVER.public).reply(b"x", REQUEST), REQUEST
    ),
    "a request for another name": lambda: THERE.open_request(Channel("chur", SERVER, BERN.public).request(b"x")),
    "a reply under another name": lambda: HERE.open_reply(
        Channel("chur", BERN, SERVER.public).reply(b"x", REQUEST), REQUEST
    ),
    "a reply to another request of the same words": lambda: HERE.open_reply(REPLY, HERE.request(b"train, please")),
    "a request taken for a reply": lambda: HERE.open_reply(REQUEST, REQUEST),
    "a request sent back": lambda: HERE.open_reply(
        Channel("bern", SERVER, SERVER.public).reply(b"x", REQUEST), REQUEST
    ),
    "nothing": lambda: THERE.open_request(b""),
    "too short": lambda: THERE.open_request(REQUEST[: OVERHEAD - 1]),
    "cut off": lambda: THERE.open_request(REQUEST[:-1]),
    "prolonged": lambda: THERE.open_request(REQUEST + b"x"),
    "plain bytes": lambda: THERE.open_request(b"x" * 500),
}


@pytest.mark.parametrize("what", WRONG)
def test_it_is_refused(what):
    with pytest.raises(FederationError, match=r"not signed by its sender's key|in no envelope of coterie's"):
        WRONG[what]()


@pytest.mark.parametrize("place", range(len(REQUEST)))
def test_no_bit_of_it_can_be_changed(place):
    changed = bytearray(REQUEST)
    changed[place] ^= 1
    with pytest.raises(FederationError):
        THERE.open_request(bytes(changed))


def test_a_reply_can_be_given_to_a_request_of_which_only_the_head_was_read():
    assert HERE.open_reply(THERE.reply(b"too large", REQUEST[:HEAD]), REQUEST) == b"too large"


def test_nothing_of_the_text_is_to_be_seen():
    assert b"train" not in REQUEST
    assert b"done" not in REPLY


def test_keys_are_read_as_they_were_written():
    again, public = Keys.load(BERN.save()), PublicKeys.load(BERN.public.save())
    assert Channel("bern", again, SERVER.public).open_request(REQUEST) == b"train, please"
    assert Channel("bern", SERVER, public).open_reply(REPLY, REQUEST) == b"done, as asked"


@pytest.mark.parametrize("load", [Keys.load, PublicKeys.load])
def test_files_that_are_no_pair_of_keys_are_refused(load):
    for content in (b"", b"junk", b"a\n-----END b\n", BERN.save()[:60], BERN.save().split(b"\n-----END")[0]):
        with pytest.raises((UsageError, ValueError)):
            load(content)
    saved = BERN.save() if load == Keys.load else BERN.public.save()
    head, _, tail = saved.partition(b"-----\n-----BEGIN")
    swapped = b"-----BEGIN" + tail.rstrip() + b"\n" + head + b"-----\n"
    with pytest.raises(UsageError, match="one of Ed25519 and one of X25519"):
        load(swapped)


def test_a_reply_under_one_run_is_no_reply_under_another():
    """The run stands in the request, and the reply is signed over the request's own signature."""
    here, there = (HERE.request(pack_hello(run)) for run in ("heart", "lung"))
    reply = THERE.reply(b"of heart", here)
    assert HERE.open_reply(reply, here) == b"of heart"
    with pytest.raises(FederationError, match="not signed by its sender's key"):
        HERE.open_reply(reply, there)
