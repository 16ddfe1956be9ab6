"""The models that a site keeps: whole or not at all, one of them in use, old ones within reach."""

from __future__ import annotations

import json
import os
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.deploy.model_store import CARD, CURRENT, ModelStore, check_version, versions_table
from coterie.errors import FederationError, UsageError
from coterie.terminal import console

_clock = count(1)


def writer(text: str = "weights"):
    """Writes a version: a large file, and a card that is later than all before."""

    def write(folder: Path) -> None:
        (folder / "model").write_text(text)
        card = {"received": f"2026-01-01T00:00:{next(_clock):09d}", "measure": "accuracy", "cluster": 0, "clusters": 2}
        (folder / CARD).write_text(json.dumps({**card, "scores": {"this model": 0.91234, "guessing": 0.5}}))

    return write


@pytest.fixture
def store(tmp_path) -> ModelStore:
    return ModelStore(tmp_path / "models", keep=3)


def names(store: ModelStore) -> list[str]:
    return [each.name for each in store.versions()]


def test_the_newest_version_is_current_and_old_ones_stay_up_to_a_number(store):
    for version in "abcde":
        assert store.add(version, writer(version))
        assert store.current() == version
        assert (store.folder / CURRENT / "model").read_text() == version
    assert names(store) == ["c", "d", "e"]
    assert sorted(path.name for path in store.folder.iterdir()) == [".lock", "c", CURRENT, "d", "e"]


def test_the_version_in_use_is_never_removed(store):
    for version in "abc":
        store.add(version, writer())
    assert store.roll_back("a") == "a"
    for version in "defg":
        store.folder.joinpath(CURRENT).unlink()
        os.symlink("a", store.folder / CURRENT)  # in use whatever arrives
        (store.folder / version).mkdir()
        writer()(store.folder / version)
    store._remove_old()
    assert names(store) == ["a", "e", "f", "g"]


def test_going_back_takes_the_one_before_and_forward_again_any_that_is_named(store):
    for version in "abc":
        store.add(version, writer())
    assert [store.roll_back(), store.current(), store.roll_back()] == ["b", "b", "a"]
    with pytest.raises(UsageError, match="a is the oldest version here"):
        store.roll_back()
    assert store.roll_back("c") == "c"
    with pytest.raises(UsageError, match=r"no version 'x'; this site has a, b, c"):
        store.roll_back("x")


def test_a_version_that_the_site_went_back_from_does_not_return_by_itself(store):
    """The server may hand the same over again; a newer one is used at once, and the site may change its mind."""
    store.add("a", writer())
    store.add("b", writer())
    store.roll_back()
    assert store.add("b", writer("changed")) is False
    assert store.current() == "a"
    assert [each.is_set_aside for each in store.versions()] == [False, True]
    assert store.add("c", writer())
    assert store.roll_back("b") == "b"
    assert store.add("b", writer()), "it is in use again, so that nothing keeps it from being so"


def test_a_version_that_is_there_is_not_written_again(store):
    store.add("a", writer("first"))
    store.add("a", writer("second"))
    assert (store.folder / "a" / "model").read_text() == "first"


class Killed(BaseException):
    """What no program survives."""


CALLS = ("mkdir", "rename", "replace", "symlink", "fsync", "unlink")


@pytest.mark.parametrize("before", [[], ["a"], ["a", "b", "c"]])
def test_killed_at_any_call_of_the_system_the_old_version_is_current_and_the_new_one_whole_or_absent(
    tmp_path, monkeypatch, before
):
    """And the next delivery of the same version succeeds, whatever was left."""
    for last in count():
        store = ModelStore(tmp_path / str(last), keep=3)
        for version in before:
            store.add(version, writer(version))
        done = []

        def dying(real, done=done, last=last):
            def call(*args, **kwargs):
                if len(done) == last:
                    raise Killed
                done.append(real.__name__)
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            for name in CALLS:
                patched.setattr(os, name, dying(getattr(os, name)))
            try:
                store.add("new", writer("new"))
                ended = True
            except Killed:
                ended = False
        assert store.current() in (("new",) if ended else (before[-1] if before else None, "new"))
        for version in names(store):
            assert (store.folder / version / "model").read_text() == version
            assert (store.folder / version / CARD).exists()
        if ended:
            assert len(done) > 8, "it was killed at every one of these"
            return
        assert store.add("new", writer("new"))
        assert names(store) == [*before[-2:], "new"]


@given(st.text(max_size=120))
@settings(max_examples=200)
def test_a_name_that_is_accepted_is_a_file_in_the_folder_and_none_of_its_own(name):
    try:
        check_version(name)
    except FederationError:
        return
    assert Path("models", name).parent == Path("models")
    assert not name.startswith(".")
    assert name != CURRENT


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", ".hidden", CURRENT, "x" * 101, "a\n", "ä"])
def test_a_name_that_could_be_another_file_is_refused(store, name):
    with pytest.raises(FederationError, match="the version is"):
        store.add(name, writer())


def test_the_table_says_which_is_in_use(store):
    for version in "ab":
        store.add(version, writer())
    store.roll_back()
    (store.folder / "a" / CARD).write_text("{")
    with console.capture() as shown:
        console.print(versions_table(store.versions()))
    assert "current" in shown.get()
    assert "rolled back" in shown.get()
    assert "accuracy 0.912" in shown.get()


def test_a_site_without_a_model_has_nothing_to_go_back_to(store):
    assert store.versions() == []
    with pytest.raises(UsageError, match="received no model yet"):
        store.roll_back()
