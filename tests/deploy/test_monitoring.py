"""/health and /metrics, logs that are put aside, and warnings before a certificate expires."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("prometheus_client")

from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from coterie.cli import main
from coterie.deploy.carried import CARRIED, Carried
from coterie.deploy.certificates import expires, expiry_warnings
from coterie.deploy.config import load_site
from coterie.deploy.health import node_health
from coterie.deploy.logs import FACTS, log_to, rotate, telling
from coterie.deploy.monitoring import Health, Measure, metrics_page, monitored
from coterie.deploy.processes import Program
from coterie.deploy.server_health import server_health
from coterie.deploy.status import StatusBoard
from coterie.deploy.trial import free_ports
from coterie.errors import FederationError, UsageError


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(page):
    families = text_string_to_metric_families(page)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def program(name="superlink", code=None):
    return Program(name, SimpleNamespace(poll=lambda: code), None)


def test_pages_say_what_there_is_at_that_moment_and_nothing_else_is_served():
    (port,), states = free_ports(1), [Health(measures=[Measure("x", "An x", 2, {"a": 'b"\n'})])]
    with monitored(port, lambda: states[-1]):
        assert get(port, "/health")[0] == 200
        assert samples(get(port, "/metrics")[1]) == {("coterie_x", 'b"\n'): 2.0}
        states.append(Health(["nginx has ended"], ["soon"]))
        code, page = get(port, "/health")
        assert (code, json.loads(page)["problems"], json.loads(page)["warnings"]) == (
            503,
            ["nginx has ended"],
            ["soon"],
        )
        for path in ("/", "/health/..", "/metrics?x", "/healthy"):
            assert get(port, path)[0] == 404
        with pytest.raises(UsageError, match=f"monitor is {port}, where nothing can listen"), monitored(port, Health):
            pass
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)


def test_without_a_port_nothing_is_served():
    with monitored(None, lambda: pytest.fail("nobody looks")):
        pass


def test_counters_and_gauges_have_their_types():
    page = metrics_page(
        [Measure("n", "N", 1, counts=True), Measure("g", "G", 1, {"s": "a"}), Measure("g", "G", 2, {"s": "b"})]
    )
    kinds = {family.name: family.type for family in text_string_to_metric_families(page.decode())}
    assert kinds == {"coterie_n": "counter", "coterie_g": "gauge"}
    assert samples(page.decode())[("coterie_g", "b")] == 2


def test_the_server_says_which_program_ended_and_how_the_run_is(made, tmp_path):
    folder, board = made / "server", StatusBoard(tmp_path / "status.json", "run", str(tmp_path), ("a", "b", "c"))
    board.sites({"a": "answered", "b": "not connected", "c": "asked"})
    board.update(state="running", rounds=9, record={"round": 3, "accuracy": 0.5, "missing": {"b": "x"}, "loss": None})
    line = json.dumps({"total": 1.5, "bytes_down": 10, "bytes_up": 20})
    (tmp_path / "exchanges.jsonl").write_text(f"not json\n{line}\n")
    found = server_health(folder, board.path, [program(), program("nginx", 1)])
    assert found.problems == ["nginx has ended"]
    numbers = samples(metrics_page(found.measures).decode())
    wanted = {
        ("coterie_up", "superlink"): 1,
        ("coterie_up", "nginx"): 0,
        ("coterie_run_going",): 1,
        ("coterie_run_round",): 4,
        ("coterie_run_rounds",): 9,
        ("coterie_run_missing",): 1,
        ("coterie_run_score", "accuracy"): 0.5,
        ("coterie_site_answered", "a"): 1,
        ("coterie_site_answered", "b"): 0,
        ("coterie_site_answered", "c"): 1,
        ("coterie_exchange_seconds",): 1.5,
        ("coterie_exchange_bytes", "up"): 20,
    }
    assert {key: numbers.get(key) for key in wanted} == wanted
    assert numbers[("coterie_certificate_days", "server.crt")] == pytest.approx(825, abs=1)
    board.update(state="failed", error="too few sites")
    assert server_health(folder, board.path, []).problems == ["run run failed: too few sites"]


def test_a_node_counts_what_it_carries_and_says_that_its_agent_is_away(own):
    def call(request):
        if request == b"lost":
            raise ConnectionRefusedError("nobody")
        return request * 2

    folder = own / "sites" / "bern" / "flower"
    folder.mkdir()
    carried = Carried(call, folder / CARRIED)
    assert carried(b"abc") == b"abcabc"
    with pytest.raises(ConnectionRefusedError):
        carried(b"lost")
    found = node_health(load_site(folder.parent), program("supernode"))
    assert "the agent does not answer" in found.problems[0]
    numbers = samples(metrics_page(found.measures).decode())
    counts = ("messages", "failures", "bytes_in", "bytes_out")
    assert [numbers[(f"coterie_{name}_total",)] for name in counts] == [1, 1, 3, 6]
    assert numbers[("coterie_agent_answers",)] == 0


def test_certificates_warn_thirty_days_before_and_say_what_to_do(made):
    end = expires(made / "server" / "server.crt")
    assert expiry_warnings(made / "server") == []
    assert expiry_warnings(made / "server", end - timedelta(days=30, hours=1)) == []
    (soon,) = expiry_warnings(made / "server", end - timedelta(days=29, hours=1))
    assert soon.startswith(f"server.crt expires in 29 days, on {end:%Y-%m-%d}; renew it where")
    assert "coterie federate renew" in soon
    (late,) = expiry_warnings(made / "server", end + timedelta(days=3))
    assert late.startswith("server.crt expired on")
    (at_site,) = expiry_warnings(made / "sites" / "bern", datetime.now(UTC) + timedelta(days=3649))
    assert at_site.startswith("ca.crt expires in")


def test_logs_are_json_lines_with_facts_and_end_with_the_block(tmp_path):
    log = logging.getLogger("coterie.test")
    with log_to(tmp_path / "logs" / "x.jsonl"):
        log.info("round %d", 3, extra={FACTS: {"run": "r"}})
        try:
            raise ValueError("why")
        except ValueError:
            log.exception("it\nfailed")
    log.warning("not here")
    first, second = map(json.loads, (tmp_path / "logs" / "x.jsonl").read_text().splitlines())
    assert (first["text"], first["run"], first["level"], first["from"]) == ("round 3", "r", "info", "coterie.test")
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second["text"] == "it\nfailed"
    assert "ValueError: why" in second["error"]


def test_the_end_of_a_run_is_in_the_log_with_its_name_and_its_error(tmp_path):
    board = StatusBoard(tmp_path / "status.json", "heart", str(tmp_path / "heart"), ("bern",))
    with log_to(tmp_path / "run.jsonl"):
        with board.recording_end():
            pass
        with pytest.raises(FederationError), board.recording_end():
            raise FederationError("no site answers")
        with pytest.raises(ZeroDivisionError), board.recording_end():
            raise ZeroDivisionError
    lines = list(map(json.loads, (tmp_path / "run.jsonl").read_text().splitlines()))
    assert [(line["level"], line["run"]) for line in lines] == [
        ("info", "heart"),
        ("error", "heart"),
        ("error", "heart"),
    ]
    assert [line["text"] for line in lines[:2]] == ["the run is done", "the run failed: no site answers"]
    assert "ZeroDivisionError" in lines[2]["error"]


def test_what_an_operator_is_told_is_in_the_log_too_and_printed_once(tmp_path, monkeypatch, capsys):
    told, printed = [], main._Printed()
    monkeypatch.setattr(logging.getLogger("coterie"), "handlers", [printed])
    with log_to(tmp_path / "logs" / "agent.jsonl"):
        telling(told.append, "coterie.deploy.site")("the model 100% is here")
        logging.getLogger("coterie.deploy.site").warning("told by nobody else")
    assert capsys.readouterr().err == "told by nobody else\n"
    line, _ = map(json.loads, (tmp_path / "logs" / "agent.jsonl").read_text().splitlines())
    assert (line["text"], line["from"]) == (told[0], "coterie.deploy.site")
    assert (tmp_path / "logs").stat().st_mode & 0o077 == 0, "it may quote a table"


def test_a_large_log_of_another_program_is_put_aside_while_it_is_open(tmp_path):
    path = tmp_path / "superlink.log"
    with path.open("ab", buffering=0) as file:
        for number in range(4):
            file.write(b"%d" % number * 10)
            assert rotate(path, largest=10, kept=2)
        file.write(b"new")
        assert not rotate(path, largest=10, kept=2)
    assert path.read_bytes() == b"new"
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, f"{path.name}.1", f"{path.name}.2"]
    assert (tmp_path / f"{path.name}.1").read_bytes() == b"3" * 10
    assert not rotate(tmp_path / "none")
