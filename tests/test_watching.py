"""A live page: how a run stands, what happened in it, what browsers are sent, and who is let in."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette")

import httpx
from typer.testing import CliRunner

from coterie.cli.main import app as command_line
from coterie.errors import RunFolderError, UsageError
from coterie.experiments.settings import Settings
from coterie.experiments.sweep import PLAN, save_plan
from coterie.reporting.report.page import Section
from coterie.watching import feed as feeds
from coterie.watching import pace as paces
from coterie.watching.app import MOST_LISTENERS, application
from coterie.watching.comparison_sections import progress_of
from coterie.watching.feed import Feed
from coterie.watching.happenings import Happening, happenings
from coterie.watching.marks import mark_of
from coterie.watching.pace import Pace
from coterie.watching.run_sections import answers_body, now_body
from coterie.watching.run_watch import is_comparison, watch_folder
from coterie.watching.serving import check_loopback, open_socket, serve_feed, web_server
from coterie.watching.standing import ENDING, FINISHED, RUNNING, SILENT, WAITING, standing_of
from coterie.watching.view import View

NOW = 1_700_000_000.0


def record(number: int, **more) -> dict:
    return {"round": number, "seconds": 2.0, "clusters": [2, 2], "moved": 0, "asked": 4, **more}


def write_run(folder: Path, records: list[dict], rounds: int = 10, **config) -> Path:
    """Write the files of a run that has these records, the last of them at NOW."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {"algorithm": "wecfl", "seed": 1, "rounds": rounds, **config}
    (folder / "config.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in words.items()))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    os.utime(folder / "rounds.jsonl", (NOW, NOW))
    return folder


# How a run stands.


def test_the_time_left_is_that_of_the_last_rounds_without_the_first(tmp_path):
    records = [record(0, seconds=100.0), record(1, seconds=2.0), record(2, seconds=4.0)]
    standing = standing_of(write_run(tmp_path / "run", records))
    assert standing.done == 3
    assert standing.usual == 3.0
    assert standing.ends == NOW + 3.0 * 7


def test_rounds_of_different_length_count_by_their_mean(tmp_path):
    """Every fifth round is evaluated and takes longer: a median would miss that."""
    records = [record(n, seconds=6.0 if n % 5 == 0 else 1.0) for n in range(41)]
    assert standing_of(write_run(tmp_path / "run", records, 100)).usual == pytest.approx(2.0)


def test_a_run_that_went_on_from_another_counts_its_rounds(tmp_path):
    standing = standing_of(write_run(tmp_path / "run", [record(20), record(21)], 30))
    assert (standing.done, standing.rounds) == (22, 30)
    assert standing.ends == NOW + 2.0 * 8


def test_the_states_of_a_run(tmp_path):
    assert standing_of(tmp_path / "none").state(NOW) == WAITING
    run = write_run(tmp_path / "run", [record(0), record(1)])
    assert standing_of(run).state(NOW + 59) == RUNNING
    assert standing_of(run).state(NOW + 60) == SILENT
    write_run(run, [record(n, seconds=30.0) for n in range(2)])
    assert standing_of(run).state(NOW + 149) == RUNNING  # five times 30 s
    assert standing_of(run).state(NOW + 150) == SILENT
    write_run(run, [record(n) for n in range(10)])
    assert standing_of(run).state(NOW + 1) == ENDING
    (run / "summary.json").write_text("{}")
    assert standing_of(run).state(NOW + 10_000) == FINISHED


def test_a_reference_that_is_trained_keeps_a_run_from_being_silent(tmp_path):
    run = write_run(tmp_path / "run", [record(n) for n in range(10)])
    other = write_run(run / "references" / "fedavg", [record(0)], algorithm="fedavg")
    os.utime(other / "rounds.jsonl", (NOW + 500, NOW + 500))
    standing = standing_of(run)
    assert standing.state(NOW + 510) == ENDING
    assert standing.state(NOW + 600) == SILENT
    assert standing.reference is not None
    assert standing.reference.config["algorithm"] == "fedavg"


def test_a_half_written_line_is_not_a_round(tmp_path):
    run = write_run(tmp_path / "run", [record(0), record(1)])
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "sec')
    assert standing_of(run).done == 2


# What happened.


def test_happenings_are_changes_only():
    records = [
        record(0, clusters=[4], note="one model until round 2"),
        record(1, clusters=[4], note="one model until round 2", missing={"a": "not connected", "b": "not connected"}),
        record(2, clusters=[2, 2], moved=1, missing={"a": "not connected", "c": "refused: steps"}),
        record(3, clusters=[2, 2]),
    ]
    assert happenings(records) == [
        Happening(1, "one model until round 2"),
        Happening(2, "a, b missing: not connected"),
        Happening(3, "1 cluster became 2"),
        Happening(3, "1 client moved to another cluster"),
        Happening(3, "c missing: refused: steps"),
        Happening(3, "b answered again"),
        Happening(4, "a, c answered again"),
    ]


def test_who_did_not_answer_is_named_with_the_reason():
    body = answers_body([record(0), record(1, missing={"bern": "no answer within 5 s"}), record(2)])
    assert '>4</td><td class="word">3</td><td class="word">bern: no answer within 5 s</td>' in body
    assert '>1 of 3</td><td class="word">2</td><td class="word">no answer within 5 s</td>' in body
    assert answers_body([record(0)]) == "<p>All 4 clients answered in every round.</p>"


def test_names_and_reasons_of_clients_are_text(tmp_path):
    hostile = {"<img src=x onerror=alert(1)>": "<script>alert(2)</script>"}
    watched = watch_folder(write_run(tmp_path / "run", [record(0, missing=hostile)]))
    content = "".join(each.body for each in watched.now().sections)
    assert "<img" not in content
    assert "<script" not in content
    assert "&lt;script&gt;alert(2)" in content


def test_a_silent_run_says_how_to_resume_it(tmp_path):
    body = now_body(standing_of(write_run(tmp_path / "a run", [record(0)])))
    assert f"--resume --out &#x27;{tmp_path}/a run&#x27;" in body


# Comparisons.


def test_a_comparison_counts_the_runs_of_its_plan(tmp_path):
    plan = [Settings(name, seed=seed, rounds=10) for seed in (1, 2) for name in ("fedavg", "wecfl")]
    save_plan(plan, tmp_path)
    done = write_run(tmp_path / "fedavg" / "seed-1", [record(n) for n in range(10)], algorithm="fedavg")
    (done / "summary.json").write_text("{}")
    write_run(tmp_path / "wecfl" / "seed-1", [record(n, seconds=4.0) for n in range(5)])
    assert is_comparison(tmp_path)
    progress = progress_of(tmp_path)
    assert [each.name for each in progress.runs] == ["fedavg seed 1", "wecfl seed 1", "fedavg seed 2", "wecfl seed 2"]
    assert progress.finished == 1
    assert progress.current is not None
    assert progress.current.name == "wecfl seed 1"
    # 5 rounds of 4 s, 10 of 2 s for fedavg, 10 of 4 s for wecfl.
    assert progress.ends == NOW + 20 + 20 + 40


def test_a_plan_does_not_lead_out_of_its_folder(tmp_path):
    write_run(tmp_path / "elsewhere" / "seed-1", [record(0)])
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / PLAN).write_text(json.dumps([{"folder": "../elsewhere/seed-1"}, {"folder": 3}, 7]))
    assert progress_of(tmp_path / "here").runs == []


def test_a_comparison_that_is_refused_leaves_no_plan(tmp_path):
    words = ["compare", "fedavg", "--data", "digits", "--partition", "dirichlet(0,1)", "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(command_line, words).exit_code == 2
    assert not (tmp_path / "out").exists()


# Marks.


def test_a_mark_changes_when_a_file_grows_is_replaced_or_goes(tmp_path):
    marks = [mark_of(tmp_path / "run")]
    run = write_run(tmp_path / "run", [record(0)])
    marks.append(mark_of(run))
    write_run(run, [record(0), record(1)])  # longer, with the same date
    marks.append(mark_of(run))
    content = (run / "rounds.jsonl").read_bytes()
    (run / "new").write_bytes(content)
    os.utime(run / "new", (NOW, NOW))
    (run / "new").replace(run / "rounds.jsonl")  # another file of the same size and date
    marks.append(mark_of(run))
    (run / "config.toml").unlink()
    marks.append(mark_of(run))
    assert len(set(marks)) == len(marks)
    assert mark_of(run) == marks[-1]


def test_files_that_are_being_written_have_no_mark(tmp_path):
    run = write_run(tmp_path / "run", [record(0)])
    before = mark_of(run)
    (run / ".labels.npy.123").write_text("half")
    assert mark_of(run) == before


# The feed.


class Shown:
    """Something watched whose sections and mark a test sets; it counts how often it is looked at."""

    def __init__(self, **bodies: str) -> None:
        self.bodies, self.number, self.looks, self.reports, self.error = bodies, 0, 0, 0, None
        self.again: float | None = None
        self.long, self.ended = "1", False

    def mark(self) -> int:
        return self.number

    def report(self) -> list[Section]:
        self.reports += 1
        if self.error is not None:
            raise self.error
        return [Section("long", "long", self.long)]

    def now(self) -> View:
        self.looks += 1
        if self.error is not None:
            raise self.error
        sections = tuple(Section(name, name, body) for name, body in self.bodies.items())
        return View("title", sections, self.again, self.ended)

    def change(self, **bodies: str) -> None:
        self.bodies, self.number = bodies, self.number + 1


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.0
        return self.now


def feed_of(shown: Shown) -> tuple[Feed, Clock]:
    clock = Clock()
    return Feed(shown, Pace(clock, clock), Pace(clock, clock)), clock


def test_only_sections_that_changed_are_sent():
    async def story() -> None:
        shown = Shown(a="1", b="1")
        feed, clock = feed_of(shown)
        await feed.refresh()
        first = feed.stamp
        shown.change(a="2", b="1", c="1")
        clock.now += 10
        await feed.refresh()
        update = feed.since(first)
        assert update.order == ("a", "b", "c", "long")
        assert [each.id for each in update.sections] == ["a", "c"]
        assert feed.since(update.stamp).sections == ()

    asyncio.run(story())


def test_a_browser_of_another_server_gets_everything():
    async def story() -> None:
        feed, _ = feed_of(Shown(a="1", b="1"))
        await feed.refresh()
        for stamp in ("", "0000-1", "nonsense", f"{feed.name}-", f"{feed.name}--1", f"{feed.name}-\u00b2"):
            assert [each.id for each in feed.since(stamp).sections] == ["a", "b", "long"], stamp

    asyncio.run(story())


def test_a_change_is_collected_once_however_many_look():
    async def story() -> None:
        shown = Shown(a="1")
        feed, clock = feed_of(shown)
        await feed.refresh()
        readers = [feed.updates(feed.stamp) for _ in range(5)]
        waiting = [asyncio.ensure_future(anext(each)) for each in readers]
        await asyncio.sleep(0)
        assert feed.listeners == 5
        shown.change(a="2")
        clock.now += 10
        await asyncio.gather(*(feed.refresh() for _ in range(5)))
        got = await asyncio.gather(*waiting)
        assert [each.sections[0].body for each in got] == ["2"] * 5
        assert shown.looks == 2
        for each in readers:
            await each.aclose()
        assert feed.listeners == 0

    asyncio.run(story())


def test_what_did_not_change_is_not_sent_again():
    async def story() -> None:
        shown = Shown(a="1")
        feed, clock = feed_of(shown)
        await feed.refresh()
        stamp = feed.stamp
        shown.change(a="1")
        clock.now += 10
        await feed.refresh()
        assert shown.looks == 2
        assert feed.stamp == stamp

    asyncio.run(story())


def test_a_report_that_could_not_be_made_is_tried_again_though_nothing_changes():
    async def story() -> None:
        shown = Shown(a="1")
        feed, clock = feed_of(shown)
        shown.error = OSError("a file is being replaced")
        await feed.refresh()
        assert any(each.id == "report-trouble" for each in feed.sections)
        shown.error = None
        clock.now += 10
        await feed.refresh()
        assert [each.id for each in feed.sections if each.id == "report-trouble"] == []
        made = shown.reports
        clock.now += 10
        await feed.refresh()
        assert shown.reports == made

    asyncio.run(story())


def test_the_report_of_what_has_ended_comes_with_that_news_however_long_it_takes():
    def takes_long() -> None:
        clock.now += 2.0  # 4% of 50 s

    shown = Shown(a="running")
    feed, clock = feed_of(shown)

    async def story() -> None:
        await feed.refresh()
        feed.report_pace.do(takes_long)
        clock.now += 2
        shown.long = "whole"
        shown.change(a="running")
        await feed.refresh()
        assert "whole" not in [each.body for each in feed.sections]
        clock.now += 2
        shown.ended = True
        shown.change(a="finished")
        await feed.refresh()
        assert [each.body for each in feed.sections] == ["finished", "whole"]
        made = shown.reports
        feed.report_pace.do(takes_long)
        clock.now += 2
        shown.number += 1
        await feed.refresh()
        assert shown.reports == made, "afterwards at its own pace again"

    asyncio.run(story())


def test_a_view_is_made_at_most_once_a_second_and_a_report_less_often_if_it_takes_long():
    class Slow(Shown):
        takes = 0.0

        def report(self) -> list[Section]:
            clock.now += self.takes
            return super().report()

    async def looks(seconds: float) -> tuple[int, int]:
        shown.takes, shown.looks, shown.reports = seconds, 0, 0
        until = clock.now + 100
        while clock.now < until:
            clock.now += 0.25
            shown.number += 1
            await feed.refresh()
        return shown.looks, shown.reports

    shown = Slow(a="1")
    feed, clock = feed_of(shown)

    async def story() -> None:
        assert await looks(0.0) == (100, 100)
        now, reports = await looks(0.2)  # 0.2 s are 4% of 5 s
        assert 90 <= now <= 100
        assert 18 <= reports <= 20
        assert (await looks(30.0))[1] == 2  # never rarer than once a minute

    asyncio.run(story())


def test_a_view_is_made_again_when_it_said_so():
    async def story() -> None:
        shown = Shown(a="1")
        shown.again = time.time() - 1
        feed, clock = feed_of(shown)
        await feed.refresh()
        clock.now += 10
        await feed.refresh()
        assert shown.looks == 2
        shown.again = time.time() + 1000
        clock.now += 10
        await feed.refresh()
        clock.now += 10
        await feed.refresh()
        assert shown.looks == 3

    asyncio.run(story())


@pytest.mark.parametrize("error", [RunFolderError("<cut back>"), FileNotFoundError(2, "gone"), KeyError("round")])
def test_what_cannot_be_read_is_said_above_the_last_view(error, caplog):
    async def story() -> None:
        shown = Shown(a="1")
        feed, clock = feed_of(shown)
        await feed.refresh()
        shown.error = error
        shown.number += 1
        clock.now += 10
        await feed.refresh()
        assert [each.id for each in feed.sections] == ["trouble", "a", "report-trouble", "long"]
        assert "<cut" not in feed.sections[0].body
        shown.error = None
        shown.change(a="2")
        clock.now += 100
        await feed.refresh()
        assert [each.id for each in feed.sections] == ["a", "long"]

    asyncio.run(story())


def test_listeners_get_a_sign_of_life_and_are_let_go_at_the_end(monkeypatch):
    monkeypatch.setattr(feeds, "HEARTBEAT", 0.01)
    monkeypatch.setattr(feeds, "PAUSE", 0.001)

    async def story() -> None:
        feed, _ = feed_of(Shown(a="1"))
        await feed.refresh()
        got, ended = [], asyncio.Event()

        async def read() -> None:
            async for update in feed.updates(feed.stamp):
                got.append(update)
                ended.set()

        await asyncio.wait_for(asyncio.gather(read(), feed.run(ended.is_set)), 5)
        assert got
        assert set(got) == {None}

    asyncio.run(story())


def test_nothing_is_collected_while_nobody_looks(monkeypatch):
    monkeypatch.setattr(feeds, "PAUSE", 0.0)

    async def story() -> None:
        shown, turns = Shown(a="1"), iter(range(20))
        feed, _ = feed_of(shown)
        await feed.run(lambda: next(turns, None) is None)
        assert shown.looks == 0

    asyncio.run(story())


# The application.


class Client:
    """Sends requests to the application of a feed, without a socket."""

    def __init__(self, feed: Feed) -> None:
        self.transport = httpx.ASGITransport(application(feed))

    def request(self, method: str, path: str, **more) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(transport=self.transport, base_url="http://127.0.0.1:8710") as client:
                return await client.request(method, path, **more)

        return asyncio.run(ask())

    def get(self, path: str, **more) -> httpx.Response:
        return self.request("GET", path, **more)


@pytest.fixture
def client():
    return Client(Feed(Shown(a="<p>1</p>")))


def test_the_page_has_all_sections_and_strict_headers(client):
    answer = client.get("/")
    assert answer.status_code == 200
    assert "<p>1</p>" in answer.text
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in answer.headers


def test_the_policy_has_a_hash_for_every_script_and_style_and_the_page_no_other_kind(client):
    answer = client.get("/")
    blocks = re.findall(r"<(script|style)\b([^>]*)>", answer.text)
    run = [kind for kind, rest in blocks if "application/json" not in rest]
    assert answer.headers["content-security-policy"].count("'sha256-") == len(run)
    assert not re.search(r"<[^>]+\s(style|on[a-z]+)=", answer.text)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", answer.text)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8710", "", "[::1]:8710"])
def test_another_host_is_refused(client, host):
    assert client.get("/", headers={"host": host}).status_code == 400
    assert client.get("/events", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1234"])
def test_this_machine_is_not(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client, method):
    assert client.request(method, "/").status_code == 405
    assert client.request(method, "/events").status_code == 405


@pytest.mark.parametrize("path", ["/etc/passwd", "/../config.toml", "/%2e%2e/x", "/static/x", "/rounds.jsonl"])
def test_no_file_can_be_had(client, path):
    assert client.get(path).status_code == 404


def test_only_so_many_windows_are_served():
    feed = Feed(Shown(a="1"))
    feed.listeners = MOST_LISTENERS
    assert Client(feed).get("/events").status_code == 503
    assert Client(feed).get("/").status_code == 200


# Serving.


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "example.org", "", "127.0.0.1.nip.io"])
def test_an_address_that_others_reach_is_refused(host):
    with pytest.raises(UsageError, match=r"it must be 127\.0\.0\.1.*ssh -L"):
        check_loopback(host)


def test_the_own_address_is_not():
    check_loopback("127.0.0.1")
    check_loopback("localhost")


def test_a_port_that_is_taken_is_refused_and_without_one_the_next_is_taken():
    with open_socket(0) as first, open_socket(None) as second, open_socket(None) as third:
        port = first.getsockname()[1]
        assert {each.getsockname()[0] for each in (first, second, third)} == {"127.0.0.1"}
        assert third.getsockname()[1] > second.getsockname()[1]
        with pytest.raises(UsageError, match=f"port is {port}, where nothing can listen"):
            open_socket(port)


def test_the_command_refuses_a_file_and_a_host(tmp_path):
    (tmp_path / "file").write_text("")
    for words, why in (
        (["watch", str(tmp_path / "file")], "name the folder of a run"),
        (["watch", str(tmp_path), "--host", "0.0.0.0"], "it must be 127.0.0.1"),
    ):
        done = CliRunner().invoke(command_line, words)
        assert done.exit_code == 2
        assert why in done.stderr
        assert "Traceback" not in done.output


def events_of(response: httpx.Response):
    """Yield the updates of an event stream."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


def test_a_real_server_sends_rounds_as_they_come(tmp_path, monkeypatch):
    """From a folder that does not exist to a second round, over a socket; then the server ends and lets go."""
    monkeypatch.setattr(paces, "LEAST", 0.05)
    monkeypatch.setattr(feeds, "PAUSE", 0.02)
    feed, listener = Feed(watch_folder(tmp_path / "run")), open_socket(0)
    server = web_server(application(feed))
    thread = threading.Thread(target=lambda: asyncio.run(serve_feed(feed, server, listener)))
    thread.start()
    try:
        with httpx.stream("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/events", timeout=20) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            updates = events_of(response)
            assert "does not exist yet" in next(updates)["sections"][0]["body"]
            write_run(tmp_path / "run", [record(0)])
            assert "1 of 10 rounds" in next(updates)["sections"][0]["body"]
            write_run(tmp_path / "run", [record(0), record(1)])
            second = next(updates)
            assert "2 of 10 rounds" in second["sections"][0]["body"]
            assert second["order"][:2] == ["now", "answers"]
            server.should_exit = True
            assert list(updates) == []
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
    assert not thread.is_alive()
    assert feed.listeners == 0
