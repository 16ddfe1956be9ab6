"""Names that a server or a site chooses: whatever letters they have, logs stay readable and terminals unharmed."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.deploy import run_control, server_folder
from coterie.deploy.audit import Audit, audit_table, read_audit
from coterie.deploy.deployment import write_deployment
from coterie.deploy.flower_server import envelope_of, reply_status
from coterie.deploy.order import Order
from coterie.deploy.policy import Policy
from coterie.deploy.server_run import agree_on_data, ask_descriptions
from coterie.deploy.site_answers import Site
from coterie.deploy.status import StatusBoard, read_board, status_table
from coterie.errors import FederationError
from coterie.models.zoo import build_model
from coterie.protocol import message
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Task
from coterie.seeding import Key
from coterie.terminal import line
from coterie.wire import codec
from coterie.wire import requests as answering
from coterie.wire.remote import PackedReplies, Remote
from coterie.wire.reply_checks import read_reply

NAMES = {
    "two lines": "heart\n{}",
    "a carriage return": "heart\rerror: all is well",
    "an escape": "\x1b[2J\x1b[31mheart",
    "a title": "\x1b]0;pwned\x07",
    "an eight-bit escape": "\x9b31m",
    "markup": "[/x][red]heart",
    "a lone surrogate": "heart\ud800",
    "text that turns round": "\u202etraeh",
    "a separator": "heart\u2028line",
    "a thousand letters": "x" * 1000,
    "nothing": "",
}


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def name(request):
    return request.param


@pytest.fixture
def site(images, tmp_path):
    own = images(sizes=(24,))
    return Site(own.names[0], own, Policy(runs=("heart-*",)), Audit(tmp_path / "audit.jsonl"))


def shown(table) -> str:
    """A table as a terminal gets it, in an encoding that knows no lone surrogates."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="utf-8")
    Console(file=file, width=120).print(table)
    file.flush()
    return raw.getvalue().decode()


def is_plain(text: str) -> bool:
    return text.isprintable() and len(text) <= 1000


def test_words_of_others_become_one_line(name):
    told = line(name, 500)
    assert is_plain(told)
    assert len(told) <= 500
    assert line("heart-1 ü 日本") == "heart-1 ü 日本"


@pytest.mark.parametrize("word", ["run", "kind"])
def test_a_request_is_logged_and_refused_in_one_line_each(site, name, word):
    request = codec.encode({}, **{"kind": "hello", "run": "heart-1", word: name})
    problem = codec.decode(site.answer(request))[1]["problem"]
    assert is_plain(problem)
    (line,) = site.audit.path.read_bytes().splitlines()
    assert line.isascii()
    (kept,) = read_audit(site.audit.path)
    assert kept[word] == name
    assert is_plain(kept["reason"])


@pytest.mark.parametrize("limit", NAMES.values(), ids=NAMES)
def test_a_policy_s_own_words_leave_in_one_line(images, tmp_path, limit):
    own = images(sizes=(24,))
    site = Site(own.names[0], own, Policy(runs=(limit, "other")), Audit(tmp_path / "audit.jsonl"))
    assert is_plain(codec.decode(site.answer(answering.pack_hello("heart")))[1]["problem"])


def test_the_names_of_models_and_arrays_are_told_in_one_line(site, images, name):
    model = build_model("mlp(4)", (1, 8, 8), 4)
    stack = Stack(*(part[None] for part in model.initial(1)))
    packed = answering.pack_task(
        "heart-1", Task(), Key(1, 0), model, message.down(Task(), Sent(stack), 0, model.layout)
    )
    arrays, header = codec.decode(packed)
    for bad in (
        codec.encode(arrays, **{**header, "model": {**header["model"], "text": name}}),
        codec.encode({**arrays, name.encode("utf-8", "replace").decode() or " ": np.zeros(1)}, **header),
    ):
        assert is_plain(codec.decode(site.answer(bad))[1]["problem"])
    assert all(is_plain(line["reason"]) for line in read_audit(site.audit.path))


@pytest.mark.parametrize("key", ["time", "run", "round", "asked", "outcome", "reason", "kind", "left", "bytes_out"])
def test_every_column_of_the_log_is_shown_as_it_is(name, key):
    value = {name: [1, 2], "other": name} if key == "left" else name
    told = shown(audit_table([{"outcome": "answered", key: value}, {"run": "heart-2", "outcome": "answered"}]))
    assert told.replace("\n", "").isprintable()
    assert "heart-2" in told
    assert told.count("answered") == (1 if key == "outcome" else 2)


def test_a_long_name_leaves_the_other_columns_their_room():
    line = {
        "run": "x" * 1000,
        "asked": "train all: 5 steps of 32",
        "outcome": "answered",
        "round": 7,
        "bytes_out": 12345,
    }
    told = shown(audit_table([line]))
    assert "12345" in told
    assert "train all: 5 steps" in told


def test_the_log_is_shown_by_the_command(tmp_path, name):
    write_deployment(tmp_path / "f", ["a"])
    folder = tmp_path / "f" / "sites" / "a"
    Audit(folder / "audit.jsonl").write({"run": name, "outcome": "refused", "reason": name, "left": {name: 3}})
    result = CliRunner().invoke(app, ["federate", "audit", "--folder", str(folder)])
    assert result.exit_code == 0, result.output
    assert result.stdout.replace("\n", "").isprintable()
    assert "refused" in result.stdout


@pytest.mark.parametrize("last", ["0", "-3"])
def test_so_many_lines_of_the_log_are_one_or_more(tmp_path, last):
    result = CliRunner().invoke(app, ["federate", "audit", "--folder", str(tmp_path), "--last", last])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: last is {last}; it must be at least 1\n"


def test_a_site_s_problem_is_one_line_for_the_server(images, name):
    data = images(sizes=(24, 24))
    model = build_model("mlp(4)", data.shape, data.classes)
    stack = Stack(*(part[None] for part in model.initial(1)))
    bad = codec.encode({}, problem=name or "no")
    extra = codec.encode({name.encode("utf-8", "replace").decode() or " ": np.zeros(1)}, problem=None)
    for heard in (PackedReplies({0: bad, 1: extra}, {}), PackedReplies({}, {0: name, 1: name})):
        told = Remote(data.names, model, lambda _, heard=heard: heard).ask(
            Task(), Sent(stack), np.zeros(2, int), np.arange(2), Key(1, 0)
        )
        assert len(told.missing) == 2
        assert all(map(is_plain, told.missing.values()))
    assert is_plain(reply_status(bad))
    lost = SimpleNamespace(has_error=lambda: True, error=SimpleNamespace(code=1, reason=name))
    with pytest.raises(FederationError) as failed:
        envelope_of(lost)
    with pytest.raises(FederationError) as error:
        read_reply(extra, message.form(Task(), Sent(stack), model.layout), Task(), np.array(0))
    assert is_plain(str(failed.value))
    assert is_plain(str(error.value))


def hello(**changed) -> bytes:
    about = {"name": "a", "version": "0.1.0", "shape": [4], "classes": 2, "class_names": [], "train": 5, "test": 5}
    return codec.encode({}, problem=None, site={**about, "validation": 0, "unit": 1.0, **changed})


def order(**changed) -> Order:
    return Order(
        {"algorithm": "fedavg"},
        **{"out": "out", "board": "b", "sites": ("a", "b"), "minimum": 1, **changed},
        timeout=1.0,
    )


@pytest.mark.parametrize("word", ["name", "version", "shape"])
def test_what_a_site_says_of_itself_is_one_line(name, word):
    told, problems = ask_descriptions(order(), lambda _: PackedReplies({0: hello(**{word: name})}, {1: name}), [0, 1])
    assert not told
    assert set(problems) == {"a", "b"}
    assert all(map(is_plain, problems.values()))


def test_sites_that_are_not_alike_are_told_in_one_line(name):
    about = {"name": "a", "version": "0.1.0", "shape": (4,), "classes": 2, "train": 5, "test": 5, "validation": 0}
    one, other = (answering.SiteDescription(**about, unit=1.0, class_names=(each,) * 50) for each in (name, "good"))
    with pytest.raises(FederationError) as error:
        agree_on_data(order(), {"a": one, "b": other})
    assert is_plain(str(error.value))


def test_the_status_of_a_run_is_shown_as_it_is(tmp_path, name):
    board = StatusBoard(tmp_path / "status.json", name, str(tmp_path), ("a", "b"))
    board.sites({"a": name})
    board.update(state="failed", error=name)
    told = read_board(board.path)
    table = shown(status_table(told, {"b": "online"}))
    assert table.replace("\n", "").isprintable()
    assert "online" in table
    with pytest.raises(FederationError) as error:
        run_control._summary(told)
    assert is_plain(str(error.value))


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b'{"state": "done"}', b"[" * 100_000, b'{"state": 1}', b"\xff"])
def test_a_damaged_board_is_none(tmp_path, content):
    (tmp_path / "status.json").write_bytes(content)
    assert read_board(tmp_path / "status.json") is None


def test_what_flower_says_is_one_line(tmp_path, name, monkeypatch):
    write_deployment(tmp_path / "f", ["a"])
    done = SimpleNamespace(returncode=1, stdout="", stderr=f"Traceback\n{name}\n")
    monkeypatch.setattr(server_folder.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(FederationError) as error:
        server_folder.ServerFolder.of(tmp_path / "f" / "server").ask(["flwr", "run", "app"])
    assert is_plain(str(error.value))


def test_the_board_and_the_log_are_lines_of_json(tmp_path, name):
    log = Audit(tmp_path / "audit.jsonl")
    log.write({"run": name})
    log.write({"run": "good"})
    assert [line["run"] for line in read_audit(log.path)] == [name, "good"]
    board = StatusBoard(tmp_path / "status.json", name, "out", ("a",))
    board.update()
    assert json.loads(board.path.read_text())["run"] == name
