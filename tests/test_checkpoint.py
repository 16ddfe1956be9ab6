"""Checkpoints: every state comes back bit for bit, above all what assign rules remember; other files are refused."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
import pytest
from safetensors.numpy import save

from coterie.errors import RunFolderError
from coterie.experiments.checkpoint import FORMAT, HEADER, fingerprint, load_checkpoint, pack_state, save_state
from coterie.experiments.run_folder import RunFolder
from coterie.protocol.stack import Stack
from coterie.server.assign import Clustered
from coterie.server.bipartition import Longest
from coterie.server.contract import MEMORY_TYPES, memory_type
from coterie.server.merging import Merged
from coterie.server.one_shot import Formed, OneShot
from coterie.server.soft import Estimated
from coterie.server.start import Pinned, first_state

RNG = np.random.default_rng(5)


def stack(rows, kind=np.float32):
    return Stack(RNG.normal(size=(rows, 3)).astype(kind), RNG.normal(size=(rows, 1)).astype(kind))


def state(memory=None, **more):
    return replace(first_state(stack(2), np.array([0, 1, -1])), memory=memory, round=7, **more)


def saved_and_loaded(tmp_path, before, kept=None):
    save_state(tmp_path / "state.safetensors", before, kept)
    after, others, digest = load_checkpoint(tmp_path / "state.safetensors")
    assert digest == pack_state(before, kept)[1] == pack_state(after, others)[1]
    return after, others


def assert_same(one, other):
    """Equal in type, and in every bit of every array, at any depth."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each in zip(one, other, strict=True):
            assert_same(*each)
    else:
        assert one == other or one != one


EMPTY = Merged(stack(1), stack(1), np.zeros((0, 3), np.float32), np.zeros(0, np.int64))
MEMORIES = {
    "Clustered": [Clustered(RNG.normal(size=(2, 5)), 3)],
    "Longest": [Longest(0.1 + 0.2), Longest(float("inf"))],
    "Merged": [Merged(stack(1), stack(1), RNG.normal(size=(2, 3)), np.array([2, 1])), EMPTY],
    "Estimated": [Estimated(np.array([0, -1, 4]))],
    "Pinned": [Pinned({"anna": 1, "bert": 0}), Pinned({})],
    "Formed": [Formed(stack(1), stack(2), RNG.normal(size=(3, 3))), Formed(stack(1, np.float64), stack(2), None)],
    "OneShot": [OneShot(), OneShot(1 / 3, 2, Formed(stack(1), stack(2), np.array([[0.0, np.nan], [-0.0, 1.0]])))],
}
"""Values of every type that the rules of coterie remember."""


def test_every_registered_type_is_tested():
    importlib.import_module("coterie.algorithms")
    ours = {name for name, kind in MEMORY_TYPES.items() if kind.__module__.startswith("coterie.")}
    assert ours == MEMORIES.keys()


@pytest.mark.parametrize("name", MEMORIES)
def test_what_a_rule_remembers_comes_back_bit_for_bit(tmp_path, name):
    for memory in MEMORIES[name]:
        before = state(memory)
        after, _ = saved_and_loaded(tmp_path, before)
        assert type(after.memory).__name__ == name
        assert_same(after, before)


@pytest.mark.parametrize(
    "memory",
    [
        None,
        0.1,
        -3,
        True,
        "text",
        [],
        {},
        [1, None, "a", [2.5, False]],
        {"array": "no name", "type": 1, "fields": {"stack": None}},
        {"a": np.arange(3), "b": {"a": np.float32([[1], [2]]), "c": [np.array(True), np.array(0.5)]}},
        {"none": np.zeros((0, 4)), "turned": np.arange(6).reshape(2, 3).T.copy()},
        float("nan"),
    ],
)
def test_plain_values_and_arrays_at_any_depth_come_back(tmp_path, memory):
    assert_same(saved_and_loaded(tmp_path, state(memory))[0].memory, memory)


def test_a_whole_state_comes_back_with_its_members_and_what_clients_keep(tmp_path):
    member = state(Clustered(RNG.normal(size=(2, 2)), 1), moments={"second": RNG.normal(size=(2, 3))})
    before = state(OneShot(), members=(member, state()), waiting=stack(3), formed=False, advice={"clusters": 2})
    kept = {"momentum/anna": RNG.normal(size=4)}
    after, others = saved_and_loaded(tmp_path, before, kept)
    assert_same(after, before)
    assert_same(others, kept)


def test_arrays_in_another_order_of_memory_are_the_same_arrays(tmp_path):
    turned = np.arange(6.0).reshape(2, 3).T
    assert_same(saved_and_loaded(tmp_path, state(turned))[0].memory, turned.copy())


@dataclass(frozen=True)
class Unregistered:
    """A memory without the decorator."""

    count: int


def test_a_type_that_is_not_registered_is_refused_and_the_remedy_named():
    with pytest.raises(TypeError, match="a rule remembers a Unregistered; put @memory_type on its class"):
        pack_state(state(Unregistered(1)))


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        ({1: "a"}, "a mapping with the key 1; use strings"),
        ({"$type": "a"}, r"a mapping with the key '\$type'; use strings that do not begin with \$"),
        ({"a": {1, 2}}, "a rule remembers a set; use arrays, numbers, strings or a @memory_type"),
        ([np.int64(3)], "a rule remembers a int64; use"),
    ],
)
def test_what_would_not_come_back_as_it_is_is_refused(memory, problem):
    with pytest.raises(TypeError, match=problem):
        pack_state(state(memory))


def test_a_type_that_is_not_there_when_a_run_is_resumed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(MEMORY_TYPES, "Unregistered", Unregistered)
    assert memory_type(Unregistered) is Unregistered
    save_state(tmp_path / "s", state(Unregistered(2)))
    assert load_checkpoint(tmp_path / "s")[0].memory == Unregistered(2)
    monkeypatch.delitem(MEMORY_TYPES, "Unregistered")
    with pytest.raises(RunFolderError, match=r"remembers a Unregistered, .* not registered; import its module first"):
        load_checkpoint(tmp_path / "s")


def written_before(header):
    """Return a sound checkpoint with the header of an earlier version."""
    arrays = {
        "params": np.zeros((1, 2), np.float32),
        "labels": np.zeros(3, np.int64),
        "memory.centres": np.ones((1, 2)),
    }
    return arrays, {**header, "hash": fingerprint(arrays, header)}


@pytest.mark.parametrize(
    ("header", "number"),
    [
        ({"round": "4", "memory": '{"clusterings": 4}'}, "before 3"),
        ({"format": str(FORMAT + 1), "round": "4", "values": "{}"}, str(FORMAT + 1)),
    ],
)
def test_a_checkpoint_of_another_version_is_refused_in_one_line(tmp_path, header, number):
    arrays, whole = written_before(header)
    path = tmp_path / "state.safetensors"
    path.write_bytes(save(arrays, metadata={HEADER: json.dumps(whole)}))
    with pytest.raises(RunFolderError) as caught:
        load_checkpoint(path)
    assert str(caught.value) == (
        f"checkpoint {path} was written by another version of coterie (format {number}, this version reads {FORMAT}); "
        "resume the run with that version, or run it again with another --out"
    )


def test_the_oldest_checkpoints_with_a_header_of_several_keys_are_refused_too(tmp_path):
    arrays, whole = written_before({"round": "4", "memory": "{}"})
    (tmp_path / "state.safetensors").write_bytes(save(arrays, metadata=whole))
    with pytest.raises(RunFolderError, match=r"was written by another version of coterie \(format before 3, this"):
        load_checkpoint(tmp_path / "state.safetensors")


def test_a_run_with_such_a_checkpoint_is_not_resumed_and_nothing_is_changed(tmp_path):
    arrays, whole = written_before({"round": "1", "memory": "{}"})
    (tmp_path / "config.toml").write_text("algorithm = 'wecfl'\n")
    (tmp_path / "rounds.jsonl").write_text('{"round": 0}\n')
    (tmp_path / "state.safetensors").write_bytes(save(arrays, metadata={HEADER: json.dumps(whole)}))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunFolderError, match="was written by another version of coterie"):
        RunFolder(tmp_path).resume()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
