"""A real federation on loopback: Flower's SuperLink behind nginx, four sites with keys, and what can go wrong."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from federations import agent_again, another_agent, kill, site_folder, train, wait_for

from coterie.data import load
from coterie.deploy import flower
from coterie.deploy.audit import AUDIT, read_audit
from coterie.deploy.certificates import make_authority, make_node_key, write_private
from coterie.deploy.config import load_site
from coterie.deploy.drift import read_history
from coterie.deploy.run_control import current_run as going_on
from coterie.deploy.run_control import drift_order, follow, make_order, stop, submit
from coterie.deploy.server import serving
from coterie.deploy.server_folder import HISTORY, online
from coterie.deploy.site_models import SiteModels
from coterie.deploy.site_programs import load_data
from coterie.deploy.status import is_alive, read_board
from coterie.deploy.trial import STARTS, free_ports, has_nginx, part_running, trial
from coterie.errors import UsageError
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import STATE, load_rounds, load_state
from coterie.experiments.settings import Settings
from coterie.experiments.warm_start import load_earlier
from coterie.wire import codec

SITES = ("client-000", "client-001", "client-002", "client-003")
SHORT = Settings("wecfl", partition="rotation(0,180)", clients=4, clusters=2, model="mlp(16)", rounds=5, eval_every=9)
OWN, FUNCTION = "own_method:by_labels(clusters=2)", "own_method:label_shares"
"""The user's own method of the examples, and the client function that it brings."""

EXAMPLES = Path(__file__).parents[2] / "examples"
HEARTBEAT = "12"
"""Seconds between two signs of life of a node: Flower takes it for gone after 24 s instead of a minute."""


@pytest.fixture(scope="module")
def data():
    return load("digits").partition("rotation(0,180)", clients=4, seed=1)


@pytest.fixture(scope="module")
def federation(data, tmp_path_factory):
    """Server, four sites, and the door if nginx is there; a round waits at most 25 s for an answer."""
    folder = tmp_path_factory.mktemp("f") / "f"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(flower.HEARTBEAT, HEARTBEAT)
        environment.setenv("PYTHONPATH", str(EXAMPLES), prepend=os.pathsep)
        environment.syspath_prepend(str(EXAMPLES))
        with trial(data, folder, proxy=has_nginx(), configure={"timeout": 25}, functions=(FUNCTION,)) as found:
            yield found


def assert_same(settings, data, state):
    """Bit for bit what the simulator gives with the plan of one client at a time."""
    expected = run_settings(replace(settings, plan="native", threads=1), data=data).state
    assert state.labels.tolist() == expected.labels.tolist()
    for ours, theirs in zip(state.stack, expected.stack, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("algorithm", [OWN, "ifca+cam", "ocfl-hdbscan"])
def test_a_federation_gives_what_the_simulator_gives(federation, data, tmp_path, algorithm):
    settings = replace(SHORT, algorithm=algorithm)
    state, records = train(federation, settings, tmp_path / "run")
    assert [record.get("missing") for record in records] == [None] * 5
    assert_same(settings, data, state)
    lines = read_audit(site_folder(federation, SITES[0]) / AUDIT)
    described = [line["left"] for line in lines if line["asked"] == f"report the array of {FUNCTION}"]
    alone = {"rows": [1], "examples": [1], "description": [1, 10]}
    assert all(left == alone for left in described), "all that a client function lets out is its array"
    assert described or algorithm != OWN


def test_a_run_begins_with_the_models_of_three_sites_and_places_the_fourth(federation, data, tmp_path):
    """Bit for bit what the simulator gives when a fourth client joins between two runs."""
    settings = replace(SHORT, rounds=2)
    train(federation, settings, tmp_path / "three", sites=SITES[:3], minimum=3)
    state, records = train(federation, settings, tmp_path / "four", earlier=str(tmp_path / "three"))
    assert [record["round"] for record in records] == [2, 3]
    note = read_board(federation.place.board)["notes"][-1]
    assert note.endswith(f"after 2 rounds; 3 clients keep their cluster; new, to be placed: {SITES[3]}")
    alone = replace(settings, plan="native", threads=1)
    run_settings(alone, tmp_path / "simulated", data=data.select(range(3)))
    expected = run_settings(alone, data=data, earlier=load_earlier(tmp_path / "simulated")).state
    assert state.labels.tolist() == expected.labels.tolist()
    np.testing.assert_array_equal(state.stack.params, expected.stack.params)


def look(federation, run):
    """One look for drift; the newest line of each site."""
    submit(federation.place, drift_order(federation.place, run))
    follow(federation.place, lambda record: None)
    return {line["site"]: line for line in read_history(federation.place.folder / HISTORY, run.name)}


def test_a_site_whose_data_changed_is_told_of_the_better_cluster(federation, data, tmp_path):
    """The fourth site's agent is given the data of a site of the other group; nobody else's verdict changes."""
    run, name = tmp_path / "drifting", SITES[3]
    train(federation, SHORT, run)
    other = next(site for site, group in zip(SITES, data.groups, strict=True) if group != data.groups[3])
    before = look(federation, run)
    assert [before[site]["better"] for site in SITES] == [None] * 4

    def with_other_data(sealed):
        site = sealed.site
        site.data = load_data(site_folder(federation, other) / "data.npz", name, site_folder(federation, name))
        site.models = SiteModels(site.data, site.policy)
        return sealed

    with another_agent(federation, name, with_other_data):
        after = look(federation, run)
    assert [after[site]["better"] is None for site in SITES] == [True, True, True, False]
    assert after[name]["better"]["cluster"] == before[other]["cluster"] != before[name]["cluster"]
    assert after[name]["test_loss"] > before[name]["test_loss"]
    assert len(read_history(federation.place.folder / HISTORY, run.name)) == 8


@pytest.fixture(scope="module")
def revived():
    """What tests start again lives as long as the federation."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def rogue(federation):
    """Put another in the place of a site's agent: what it would say goes through ``twist`` first."""
    name = SITES[3]
    with ExitStack() as stack:

        def start(twist):
            def twisting(sealed):
                honest = sealed.site.answer
                sealed.site.answer = lambda request: twist(request, honest(request))
                return sealed

            stack.enter_context(another_agent(federation, name, twisting))

        yield start


def twisted(arrays, number):
    """A reply's arrays, wrong in another way in each round."""
    params = arrays["params"]
    wrong = [np.full_like(params, np.nan), params[:, :-7], np.tile(params, (1, 10)), params.astype(np.float64)]
    return {**arrays, "params": wrong[number]}


REASONS = ["not finite", "shape (1, 1203)", "shape (1, 12100)", "float64"]


def test_nan_wrong_shapes_and_large_arrays_become_missing_rows(federation, rogue, tmp_path):
    """One site sends NaN, a short row, one ten times as long and one of another type; the others go on."""

    def twist(request, reply):
        header = codec.decode(request)[1]
        arrays, told = codec.decode(reply)
        trained = header["kind"] == "task" and header["task"]["fit"]
        return codec.encode(twisted(arrays, header["key"][1]), **told) if trained else reply

    rogue(twist)
    settings = replace(SHORT, algorithm="fedavg", rounds=len(REASONS), eval_every=99)
    state, records = train(federation, settings, tmp_path / "run")
    assert [list(record["missing"]) for record in records] == [[SITES[3]]] * len(REASONS)
    for record, reason in zip(records, REASONS, strict=True):
        assert reason in record["missing"][SITES[3]]
    assert np.isfinite(state.stack.params).all()


def test_a_node_killed_in_the_middle_of_a_round_is_missed_and_comes_back(federation, revived, tmp_path):
    """Its agent is held so that the round is open when its node dies; a new node of the same key rejoins."""
    name = SITES[1]
    folder = site_folder(federation, name)
    settings = replace(SHORT, rounds=4, eval_every=99)
    order = make_order(federation.place, settings, tmp_path / "run")
    stopped = federation.sites[name]["agent"].process.pid
    submit(federation.place, order)
    wait_for(lambda: len(load_rounds(tmp_path / "run")) >= 1)
    os.killpg(stopped, signal.SIGSTOP)
    wait_for(lambda: read_board(federation.place.board)["sites"][name]["now"] == "asked")
    kill(federation.sites[name]["node"])
    os.killpg(stopped, signal.SIGCONT)
    wait_for(lambda: len(load_rounds(tmp_path / "run")) >= 2, 120)
    # before that Flower lets no other node in
    wait_for(lambda: online(federation.place)[name] == "offline", 120, STARTS)
    revived.enter_context(part_running(folder, "node"))
    follow(federation.place, lambda record: None)
    missed = [name in record.get("missing", {}) for record in load_rounds(tmp_path / "run")]
    assert any(missed)
    assert not missed[0]
    wait_for(lambda: online(federation.place)[name] == "online", pause=STARTS)
    _, records = train(federation, replace(settings, rounds=1), tmp_path / "after")
    assert "missing" not in records[0]


def test_a_killed_server_goes_on_from_its_last_checkpoint_with_the_same_sites(federation, data, revived, tmp_path):
    """SuperLink, door and loop are killed after the second round; the server started again ends as if nothing was."""
    submit(federation.place, make_order(federation.place, SHORT, tmp_path / "run"))
    wait_for(lambda: len(load_rounds(tmp_path / "run")) >= 2)
    for program in federation.server:
        kill(program)
    wait_for(lambda: not is_alive(read_board(federation.place.board)))
    before = len(load_rounds(tmp_path / "run"))
    assert before < SHORT.rounds
    revived.enter_context(serving(federation.place.folder, has_nginx()))
    follow(federation.place, lambda record: None)
    records = load_rounds(tmp_path / "run")
    assert [record["round"] for record in records] == list(range(SHORT.rounds))
    assert not any("missing" in record for record in records)
    assert_same(SHORT, data, load_state(tmp_path / "run" / STATE))


@pytest.fixture
def stranger(federation, tmp_path):
    """Flower's node as somebody else would start it; what it says until it ends or ten seconds are over."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    address = load_site(site_folder(federation, SITES[0])).server

    def start(*flags):
        port, *_ = free_ports(1)
        command = [
            flower.program("flower-supernode"),
            "--superlink",
            address,
            "--port",
            str(port),
            "--host",
            "127.0.0.1",
        ]
        limits = ("--max-retries", "1", "--max-wait-time", "5")
        done = subprocess.run(
            ["timeout", "25", *command, *limits, *flags],
            env=flower.environment(folder),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return start


def test_a_key_that_is_not_registered_is_not_let_in(federation, stranger, tmp_path):
    key = tmp_path / "key"
    write_private(key, make_node_key("mallory").private)
    ca = federation.place.folder / "ca.crt"
    code, said = stranger("--root-certificates", str(ca), "--auth-supernode-private-key", str(key))
    assert code != 0
    assert "SuperNode ID" not in said
    assert sorted(online(federation.place)) == list(SITES)


def test_without_tls_nobody_is_let_in(federation, stranger):
    code, said = stranger("--insecure")
    assert code != 0
    assert "SuperNode ID" not in said


def test_a_server_that_the_authority_has_not_signed_is_not_believed(federation, stranger, tmp_path):
    """A site that is led to another server notices: its own certificate authority did not sign that one."""
    other = tmp_path / "ca.crt"
    other.write_bytes(make_authority().public)
    key = federation.place.folder.parent / "sites" / SITES[0] / "node.key"
    code, said = stranger("--root-certificates", str(other), "--auth-supernode-private-key", str(key))
    assert code != 0
    assert "SuperNode ID" not in said


def test_the_control_api_cannot_be_reached_through_the_door(federation, nginx, tmp_path):
    """With nothing but the authority's certificate, Flower's own commands work on loopback and fail at the door."""
    place, home = federation.place, tmp_path / "home"
    home.mkdir()

    def list_nodes(port):
        (home / "config.toml").write_text(flower.connection(port, place.folder / "ca.crt"))
        return subprocess.run(flower.nodes(), env=flower.environment(home), capture_output=True, text=True, check=False)

    assert '"success": true' in list_nodes(place.config.inner).stdout
    refused = list_nodes(place.config.port)
    assert '"success": true' not in refused.stdout
    assert "403" in refused.stdout + refused.stderr
    assert "POST /v1/control/list-nodes" in (place.folder / "nginx" / "refused.log").read_text()


def test_a_run_that_was_stopped_stays_stopped(federation, tmp_path):
    """What was saved stays; nothing goes on with it by itself, and the next run finds the federation free."""
    place = federation.place
    submit(place, make_order(place, replace(SHORT, rounds=500), tmp_path / "run"))
    wait_for(lambda: len(load_rounds(tmp_path / "run")) >= 1)
    with pytest.raises(UsageError, match="run run goes on"):
        make_order(place, SHORT, tmp_path / "other")
    stop(place)
    assert going_on(place) is None
    assert read_board(place.board)["state"] == "stopped"
    assert not place.order.exists()
    assert load_state(tmp_path / "run" / STATE).round >= 1
    with pytest.raises(UsageError, match="no run goes on"):
        stop(place)


def test_no_code_that_the_server_ships_runs_at_a_site(federation, monkeypatch, tmp_path):
    """Whoever takes the server over may ship an app that writes files; the sites answer, and no file is there."""
    trace = tmp_path / "trace"
    honest = flower.bundle()
    evil = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\n" + honest["coterie_site.py"]
    monkeypatch.setattr(flower, "bundle", lambda: {**honest, "coterie_site.py": evil})
    _, records = train(federation, replace(SHORT, rounds=1), tmp_path / "run")
    assert "missing" not in records[0]
    assert not trace.exists()


def test_every_request_is_in_the_sites_audit_log(federation):
    """After all that: one line for each, and what left a site is what was asked for."""
    lines = read_audit(federation.place.folder.parent / "sites" / SITES[0] / "audit.jsonl")
    assert {line["outcome"] for line in lines} == {"answered"}
    for line in lines:
        params = "params" in line["left"]
        assert params == (line["kind"] == "task" and "report params" in line["asked"])


def test_a_site_can_refuse_and_the_server_is_told_why(federation, revived, tmp_path):
    """A stricter policy at one site: it is missing with the reason, and others train on."""
    name = SITES[2]
    folder = site_folder(federation, name)
    policy = folder / "policy.toml"
    policy.write_text(policy.read_text().replace("most_steps = 1000", "most_steps = 3"))
    kill(federation.sites[name]["agent"])
    revived.enter_context(agent_again(federation, name))
    _, records = train(federation, replace(SHORT, algorithm="fedavg", rounds=1), tmp_path / "run")
    assert records[0]["missing"] == {
        name: "the task takes 10 minibatch steps; this site allows 3 (most_steps in its policy.toml)"
    }
    refused = read_audit(folder / "audit.jsonl")[-2]
    assert (refused["outcome"], refused["left"]) == ("refused", {})
