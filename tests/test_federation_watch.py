"""Live pages of a federation: who is connected, late, missing or refused, at the server and at a site."""

from __future__ import annotations

import json
import time
from concurrent.futures import Executor, Future
from pathlib import Path

import pytest

from coterie.deploy import connections as connecting
from coterie.deploy.config import ServerConfig, SiteConfig
from coterie.deploy.connections import Connections
from coterie.deploy.server_folder import ServerFolder
from coterie.deploy.server_watch import Federation, ServerWatch
from coterie.deploy.site_watch import SiteWatch
from coterie.deploy.status import StatusBoard
from coterie.errors import FederationError
from coterie.watching.standing import standing_of

NOW = 1_700_000_000.0
AT = "2023-11-14T22:13:20Z"
SITES = ("bern", "genf", "wien")


class AtOnce(Executor):
    """Does what is submitted at once."""

    def submit(self, work, *args, **kwargs):
        future: Future = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture
def server(tmp_path) -> ServerFolder:
    return ServerFolder(ServerConfig(tmp_path, "localhost", 9443, 8000, sites=SITES, timeout=60))


def board(server: ServerFolder, out: Path, **news: str) -> StatusBoard:
    found = StatusBoard(server.board, "run-1", str(out), SITES)
    sites = {name: {"now": what, "when": AT} for name, what in news.items()}
    found.update(state="running", rounds=10, sites={**found.status["sites"], **sites})
    return found


def write_rounds(out: Path, *records: dict) -> None:
    out.mkdir(exist_ok=True)
    basic = {"seconds": 2.0, "clusters": [2, 1], "moved": 0, "asked": 3}
    lines = [json.dumps({"round": number, **basic, **each}) for number, each in enumerate(records)]
    (out / "rounds.jsonl").write_text("\n".join(lines) + "\n")


def write_exchanges(out: Path, *answered: dict) -> None:
    out.mkdir(exist_ok=True)
    (out / "exchanges.jsonl").write_text("".join(json.dumps({"answered": each}) + "\n" for each in answered))


def test_a_site_is_late_when_it_takes_three_times_as_long_as_usual(server, tmp_path):
    out = tmp_path / "run"
    write_exchanges(out, {"bern": 4.0, "genf": 40.0}, {"bern": 6.0, "genf": 40.0}, {"bern": 5.0})
    status = board(server, out, bern="asked", genf="asked", wien="asked").status
    at = Federation(server, status, None, {}, clock=NOW + 20)
    assert at.usual() == {"bern": 5.0, "genf": 40.0}
    late = at.late()
    assert late == {"bern": "asked 20 s ago, usually answers in 5 s; given up after 60 s"}
    # wien never answered: the others' median, 40 s, counts for it.
    assert set(Federation(server, status, None, {}, clock=NOW + 121).late()) == {"bern", "genf", "wien"}
    assert Federation(server, status, None, {}, clock=NOW + 14).late() == {}


def test_the_table_of_sites_says_who_answered_who_is_missing_and_why(server, tmp_path):
    out = tmp_path / "run"
    write_rounds(out, {"missing": {"wien": "no answer within 60 s"}}, {"missing": {"wien": "refused: <steps>"}})
    status = board(server, out, bern="answered", wien="refused: <steps>").status
    found = Federation(server, status, standing_of(out), {"bern": "online"}, ["server.crt expires in 3 days"], NOW + 5)
    body = found.sites().body
    bern, genf, wien = (body[body.index(f">{name}<") :].partition("</tr>")[0] for name in SITES)
    assert ">online<" in bern
    assert ">answered<" in bern
    assert ">5 s ago<" in bern
    assert ">unknown<" in genf
    assert ">not asked yet<" in genf
    assert ">refused: &lt;steps&gt;<" in wien
    assert '<td class="word">2</td>' in wien  # rounds missed
    assert "server.crt expires in 3 days" in found.now().body


def test_a_page_is_there_before_the_first_run_and_after_a_failed_one(server, tmp_path):
    assert "no run was ordered yet" in Federation(server, None, None, {}).now().body
    status = {**board(server, tmp_path / "run").status, "state": "failed", "error": "too few <sites>"}
    body = Federation(server, status, None, {}).now().body
    assert "failed: too few &lt;sites&gt;" in body


def test_an_interrupted_run_says_how_it_goes_on(server, tmp_path):
    status = {**board(server, tmp_path / "run").status, "process": [1, "another process"]}
    assert "coterie federate server" in Federation(server, status, None, {}).now().body


def test_the_page_of_a_server_follows_its_files_and_connections(server, tmp_path, monkeypatch):
    connected = {"bern": "online"}
    monkeypatch.setattr(connecting, "online", lambda server: dict(connected))
    watched = ServerWatch(server, Connections(server, AtOnce(), 0.0))
    marks = [watched.mark()]
    assert watched.now().title == f"Federation: {tmp_path.name}"
    status = board(server, tmp_path / "run", bern="asked")
    marks.append(watched.mark())
    write_rounds(tmp_path / "run", {})
    marks.append(watched.mark())
    connected["genf"] = "online"
    marks.append(watched.mark())
    assert len(set(marks)) == 4
    view = watched.now()
    assert [each.id for each in view.sections] == ["now", "sites", "answers", "happened"]
    assert view.again is not None  # a site that was asked may become late
    status.update(state="done")
    assert watched.now().again is None


def test_connections_are_asked_rarely_and_a_server_that_is_off_is_no_fault(server, monkeypatch):
    asked = []

    def online(server):
        asked.append(1)
        raise FederationError("is the server running?")

    monkeypatch.setattr(connecting, "online", online)
    connections = Connections(server, AtOnce(), 60.0)
    for _ in range(5):
        assert connections.known() == dict.fromkeys(SITES, "unknown")
    assert len(asked) == 1


def test_the_page_of_a_site_shows_what_it_was_asked_and_its_models(tmp_path):
    watched = SiteWatch(SiteConfig(tmp_path, "bern", "localhost:9443"))
    assert "asked nothing yet" in watched.now().sections[1].body
    assert watched.report() == []
    lines = [
        {"time": AT, "run": "<run>", "asked": "train all", "outcome": "answered", "left": {"params": [10]}},
        {"time": AT, "run": "r", "kind": "task", "outcome": "refused", "reason": "steps is 900"},
    ]
    (tmp_path / "audit.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines) + "half a li")
    version = tmp_path / "models" / "run-round-3-abc"
    version.mkdir(parents=True)
    card = {"received": "2026-01-01T00:00:00", "scores": {"this model": 0.9}, "measure": "accuracy"}
    (version / "card.json").write_text(json.dumps(card))
    now, requests = watched.now().sections
    assert "1 answered, 1 refused" in now.body
    assert "coterie federate client" in now.body  # no agent runs
    assert "refused: steps is 900" in requests.body
    assert "&lt;run&gt;" in requests.body
    assert "accuracy 0.9" in watched.report()[0].body


def test_the_mark_of_a_site_changes_with_its_log(tmp_path):
    watched = SiteWatch(SiteConfig(tmp_path, "bern", "localhost:9443"))
    before = watched.mark()
    (tmp_path / "audit.jsonl").write_text(json.dumps({"time": time.time()}) + "\n")
    assert watched.mark() != before
