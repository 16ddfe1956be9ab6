"""Hand-over without a network: every site ends with the model that it was scored with, and the server knows it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from local_sites import KeepingSites
from safetensors.numpy import load_file
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.client_functions import HERE
from coterie.data import load, load_own
from coterie.deploy import server
from coterie.deploy.audit import read_audit
from coterie.deploy.delivery import LEDGER, delivery_notes, read_ledger, version_of, waiting
from coterie.deploy.model_store import CARD, CURRENT
from coterie.deploy.order import DELIVER, Order
from coterie.deploy.policy import Policy
from coterie.deploy.server_folder import ONLINE
from coterie.deploy.server_run import carry_out, deliver_again
from coterie.deploy.site_delivery import card_text, guessing
from coterie.deploy.status import RUNNING, StatusBoard, clusters_of, headline, model_text, read_board, status_table
from coterie.errors import RunFolderError
from coterie.experiments.run_folder import load_rounds, load_summary
from coterie.experiments.settings import Settings
from coterie.experiments.summary import load_clusters, load_rows
from coterie.exporting.folder import WEIGHTS, read_network
from coterie.protocol.report import Report
from coterie.terminal import console
from coterie.wire import codec

SETTINGS = Settings("wecfl", clusters=2, model="mlp(8)", rounds=2)


@pytest.fixture(scope="module")
def data():
    return load("digits").partition("rotation(0,180)", clients=5, seed=1)


@pytest.fixture(scope="module")
def few(data):
    """The first four of the clients."""
    return data.select([0, 1, 2, 3])


def make_order(folder, sites, **changed) -> Order:
    settings = replace(SETTINGS, algorithm=changed.pop("algorithm", "wecfl"))
    paths = {"out": str(folder / changed.pop("run", "run")), "board": str(folder / "status.json")}
    given = {"minimum": 1, "timeout": 1.0, "patience": 0.0, **paths, **changed}
    return Order(settings=settings.table(), sites=tuple(sites), **given)


def carry(order, sites, folder, work=carry_out):
    board = StatusBoard(folder / "status.json", order.run, order.out, order.sites)
    return work(order, sites, board)


def accuracy_of(folder, data) -> float:
    """Of the network that a version holds, rebuilt from its files alone, on the site's test examples."""
    network = read_network(folder, answers=False)
    with torch.no_grad():
        outputs = network(torch.from_numpy(data.test.x))
    return float(np.mean(outputs.argmax(-1).numpy() == data.test.y))


SERVED = ("wecfl", "ifca", "wecfl+finetune(steps=3)", "fedavg+cam", "fedavg-ensemble(members=2)", "fedsoft", "local")


@pytest.mark.parametrize("algorithm", SERVED)
def test_what_a_site_keeps_is_what_it_was_scored_with(few, tmp_path, algorithm):
    """The files alone give the score of the last round, chosen, fine-tuned, mixed or in two halves as they may be."""
    sites = KeepingSites(few, tmp_path)
    for site in sites.sites:
        site.policy = Policy(functions=(f"{HERE}:shares_of_least_loss(smoothing=0.0001)",))
    carry(make_order(tmp_path, few.names, algorithm=algorithm), sites, tmp_path)
    scored = {row["client"]: float(row["accuracy"]) for row in load_rows(tmp_path / "run")}
    for at, name in enumerate(few.names):
        kept = sites.store(name).folder / CURRENT
        card = json.loads((kept / CARD).read_text())
        assert card["scores"]["this model"] == pytest.approx(scored[name], abs=1e-9)
        assert accuracy_of(kept, few.select([at])) == pytest.approx(scored[name], abs=1e-9)
        assert card["scores"]["guessing"] == guessing(few.select([at]))
        assert card["not_known"] == ["one model", "local model"]
    ledger = read_ledger(tmp_path / LEDGER)
    assert {entry["version"] for entry in ledger["sites"].values()} == {ledger["version"]}
    assert delivery_notes(ledger) == [f"4 of 4 sites have the model {ledger['version']}"]


def test_a_site_says_so_on_its_console_and_in_its_audit_log(few, tmp_path):
    sites = KeepingSites(few, tmp_path)
    carry(make_order(tmp_path, few.names), sites, tmp_path)
    (said,) = sites.told[few.names[0]]
    version = read_ledger(tmp_path / LEDGER)["version"]
    assert said.startswith(f"the model {version} is here: cluster ")
    assert "test examples" in said
    assert "guessing" in said
    last = read_audit(tmp_path / f"{few.names[0]}.jsonl")[-1]
    assert (last["kind"], last["asked"], last["outcome"]) == ("deliver", f"keep the model {version}", "answered")
    assert last["left"] == {"rows": [1], "examples": [1]}, "no score leaves"


def test_a_site_that_was_away_gets_its_model_later_and_nobody_twice(few, tmp_path):
    away = few.names[2]
    sites = KeepingSites(few, tmp_path)
    order = make_order(tmp_path, few.names)
    hear = sites.__call__

    def leaving(requests):
        """The site is gone when models are handed over."""
        if codec.unwrap(requests[0]).header["kind"] == "deliver":
            sites.away.add(away)
        return hear(requests)

    leaving.connected = sites.connected
    carry(order, leaving, tmp_path)
    ledger = read_ledger(tmp_path / LEDGER)
    assert waiting(ledger) == [away]
    assert ledger["sites"][away]["missing"] == "not connected"
    notes = read_board(tmp_path / "status.json")["notes"]
    assert notes[1].startswith("client-002 has not received its model: not connected; it gets")
    assert sites.store(away).versions() == []
    sites.away.clear()
    asked = sites.asked
    carry(replace(order, job=DELIVER), sites, tmp_path, deliver_again)
    assert sites.asked == asked + 1, "one exchange, with the one that lacks it"
    assert waiting(read_ledger(tmp_path / LEDGER)) == []
    assert sites.store(away).current() == ledger["version"]
    assert [len(sites.told[name]) for name in few.names] == [1, 1, 1, 1]
    carry(replace(order, job=DELIVER, again=True), sites, tmp_path, deliver_again)
    assert [len(sites.told[name]) for name in few.names] == [2, 2, 2, 2]


def test_a_site_that_refuses_is_named_and_not_asked_again_by_itself(few, tmp_path):
    sites = KeepingSites(few, tmp_path)
    sites.sites[1].policy = Policy(keep_models=False)
    sites.sites[3].policy = replace(Policy(), largest_model_mb=1)
    object.__setattr__(sites.sites[3].policy, "largest_model_mb", 0)
    carry(make_order(tmp_path, few.names), sites, tmp_path)
    ledger = read_ledger(tmp_path / LEDGER)
    assert "keep_models in its policy.toml" in ledger["sites"][few.names[1]]["missing"]
    assert "largest_model_mb in its policy.toml" in ledger["sites"][few.names[3]]["missing"]
    assert waiting(ledger) == []
    assert sites.store(few.names[1]).versions() == []


def waiting_server(few, folder, monkeypatch, names):
    """Return a server whose ledger is that of a run, and the orders that are given to it."""
    given = []
    monkeypatch.setattr(server, "online", lambda place: dict.fromkeys(names, ONLINE))
    monkeypatch.setattr(server, "make_delivery", lambda place, run: make_order(folder, few.names, job=DELIVER))
    monkeypatch.setattr(server, "submit", lambda place, order: given.append(order))
    board = folder / "status.json"
    return SimpleNamespace(ledger=folder / LEDGER, board=board, order=folder / "order.json"), given


def test_a_site_that_is_connected_and_gives_no_answer_is_tried_again_after_growing_pauses(few, tmp_path, monkeypatch):
    """Beside it one refuses and one is away: neither is asked when it is tried."""
    mute, _, away, _ = few.names
    sites = KeepingSites(few, tmp_path, mute=[mute], away=[away])
    sites.sites[1].policy = Policy(keep_models=False)
    carry(make_order(tmp_path, few.names), sites, tmp_path)
    ledger = read_ledger(tmp_path / LEDGER)
    assert waiting(ledger) == [mute, away]
    assert "and is tried again at 20" in "".join(delivery_notes(ledger))
    assert "tried again at 20" in model_text(ledger["sites"][mute])
    place, given = waiting_server(few, tmp_path, monkeypatch, few.names[:2])
    assert server.deliver_to_returned(place) == [], "its pause is not over"
    clock, pauses = time.time(), []
    for _ in range(9):
        began = clock
        while not given:
            clock += 20.0
            monkeypatch.setattr(time, "time", lambda now=clock: now)
            server.deliver_to_returned(place)
        pauses.append(clock - began)
        order, heard = given.pop(), []
        assert order.only == (mute,)

        def hear(requests, heard=heard):
            heard += requests
            return sites(requests)

        hear.connected = sites.connected
        carry(order, hear, tmp_path, deliver_again)
        assert set(heard) == {few.names.index(mute)}
    assert pauses[0] <= 60
    assert pauses[:7] == sorted(set(pauses[:7])), "each is longer than the one before"
    assert all(3560 <= pause <= 3640 for pause in pauses[7:]), "up to an hour"
    sites.mute.clear()
    carry(replace(order, only=()), sites, tmp_path, deliver_again)
    assert waiting(read_ledger(tmp_path / LEDGER)) == [away]
    assert "tries" not in read_ledger(tmp_path / LEDGER)["sites"][mute]


def test_a_site_that_was_not_connected_is_delivered_to_at_once_when_it_is(few, tmp_path, monkeypatch):
    away = few.names[2]
    sites = KeepingSites(few, tmp_path, away=[away])
    carry(make_order(tmp_path, few.names), sites, tmp_path)
    place, given = waiting_server(few, tmp_path, monkeypatch, [])
    assert server.deliver_to_returned(place) == []
    place, given = waiting_server(few, tmp_path, monkeypatch, [away])
    assert server.deliver_to_returned(place) == [away]
    assert given[0].only == (away,)
    assert server.deliver_to_returned(place) == [], "a delivery that never ends well is not ordered again at once"


def test_a_server_says_once_that_a_site_gives_no_answer(few, tmp_path, monkeypatch):
    sites = KeepingSites(few, tmp_path, mute=few.names[:1])
    carry(make_order(tmp_path, few.names), sites, tmp_path)
    place, _ = waiting_server(few, tmp_path, monkeypatch, few.names)
    monkeypatch.setattr(server, "LOOK", 0.001)
    looks, told = iter([False] * 3 + [True]), []
    server.watch_returns(place, SimpleNamespace(wait=lambda seconds: next(looks)), told.append)
    (said,) = told
    assert said.startswith("client-000 has not received its model: no answer within 1 s; it is connected and gives no")


def test_a_site_that_joined_after_the_run_is_placed_and_served(data, few, tmp_path):
    """Its model is that of a client that is turned as it is, though it was in no round."""
    sites = KeepingSites(data, tmp_path, away=[data.names[4]])
    order = make_order(tmp_path, few.names)
    done = carry(order, sites, tmp_path)
    sites.away.clear()
    carry(replace(order, sites=data.names, job=DELIVER), sites, tmp_path, deliver_again)
    late, alike = data.names[4], int(np.flatnonzero(few.groups == data.groups[4])[0])
    like = int(done.state.labels[alike])
    entry = read_ledger(tmp_path / LEDGER)["sites"][late]
    assert entry["cluster"] == like
    status, ledger = read_board(tmp_path / "status.json"), read_ledger(tmp_path / LEDGER)
    assert clusters_of(status, ledger) == {**load_clusters(tmp_path / "run"), late: like}
    assert late not in clusters_of(status, {**ledger, "run": "another"}), "of another run"
    assert str(status_table(status, {}, ledger).columns[4]._cells[data.names.index(late)]) == str(like)
    kept, theirs = (load_file(sites.store(name).folder / CURRENT / WEIGHTS) for name in (late, few.names[alike]))
    assert all(np.array_equal(kept[name], theirs[name]) for name in kept)
    card = json.loads((sites.store(late).folder / CURRENT / CARD).read_text())
    assert card["sites"] == int((done.state.labels == like).sum()) + 1
    assert sites.told[late]


def test_a_new_run_is_a_new_version_and_the_same_run_is_the_same(few, tmp_path):
    sites = KeepingSites(few, tmp_path)
    first = carry(make_order(tmp_path, few.names), sites, tmp_path)
    other = carry(make_order(tmp_path, few.names, run="other"), sites, tmp_path)
    store = sites.store(few.names[0])
    versions = [each.name for each in store.versions()]
    assert versions == [version_of("run", first.state), version_of("other", other.state)]
    assert store.current() == versions[1]
    store.roll_back()
    carry(
        replace(make_order(tmp_path, few.names, run="other"), job=DELIVER, again=True), sites, tmp_path, deliver_again
    )
    assert store.current() == versions[0], "the site went back, and stays there"
    assert read_ledger(tmp_path / LEDGER)["sites"][few.names[0]]["current"] is False
    assert "not in use: this site went back to run-" in sites.told[few.names[0]][-1]


def test_who_fails_keeps_the_version_that_it_had(few, tmp_path):
    sites = KeepingSites(few, tmp_path)
    carry(make_order(tmp_path, few.names), sites, tmp_path)
    had = read_ledger(tmp_path / LEDGER)["version"]
    sites.sites[0].store = None
    carry(make_order(tmp_path, few.names, run="other"), sites, tmp_path)
    entry = read_ledger(tmp_path / LEDGER)["sites"][few.names[0]]
    assert entry["version"] == had
    assert "no folder for models" in entry["missing"]
    with console.capture() as shown:
        console.print(status_table(None, {few.names[0]: "online"}, {"sites": {few.names[0]: entry}}))
    assert had in shown.get()


REPORT = codec.to_json(Report(params="all"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda header: {"parcel": None}, "parcel is None"),
        (lambda header: {"parcel": {**header["parcel"], "version": "../../evil"}}, "the version is '..(a path)'"),
        (lambda header: {"parcel": {**header["parcel"], "rounds": "2"}}, "rounds of Parcel is '2'"),
        (lambda header: {"parcel": {**header["parcel"], "code": "x"}}, "malformed Parcel"),
        (lambda header: {"task": {**header["task"], "report": REPORT}}, "reports nothing then"),
        (lambda header: {"model": {**header["model"], "text": "os:system"}}, "models in its policy.toml"),
    ],
)
def test_what_is_wrong_with_a_delivery_is_refused_and_nothing_is_kept(few, tmp_path, change, said):
    sites = KeepingSites(few, tmp_path)
    order = make_order(tmp_path, few.names)
    hear = sites.__call__

    def changed(requests):
        twisted = {}
        for at, request in requests.items():
            arrays, header = codec.decode(request)
            new = {**header, **change(header)} if header["kind"] == "deliver" else header
            twisted[at] = codec.encode(arrays, **new)
        return hear(twisted)

    changed.connected = sites.connected
    carry(order, changed, tmp_path)
    for name in few.names:
        assert said in read_ledger(tmp_path / LEDGER)["sites"][name]["missing"]
        assert sites.store(name).versions() == []
        assert sites.told[name] == []
    assert not (tmp_path / "evil").exists()


def test_a_receipt_for_another_version_is_none(few, tmp_path):
    sites = KeepingSites(few, tmp_path)
    honest = sites.sites[0].answer

    def lie(request):
        arrays, header = codec.decode(honest(request))
        if "receipt" in header:
            header["receipt"]["version"] = "another"
        return codec.encode(arrays, **header)

    sites.sites[0].answer = lie
    carry(make_order(tmp_path, few.names), sites, tmp_path)
    assert read_ledger(tmp_path / LEDGER)["sites"][few.names[0]]["missing"] == "sent no receipt"


def test_guessing_a_number_is_the_mean_of_the_train_examples(request):
    """By hand: the root of the mean squared distance of the test targets from that mean, in the user's unit."""
    data = replace(request.getfixturevalue("targets")().select([2]), unit=3.0)
    mean = sum(data.train.y.tolist()) / len(data.train.y)
    squares = [(y - mean) ** 2 for y in data.test.y.tolist()]
    assert guessing(data) == pytest.approx(3.0 * (sum(squares) / len(squares)) ** 0.5, rel=1e-6)


def test_a_card_says_what_is_not_known_and_when_a_score_says_little():
    scores = {"this model": 0.9, "guessing": 0.5, "one model": None, "local model": 0.8}
    card = {"cluster": 1, "clusters": 3, "measure": "accuracy", "test_examples": 12, "scores": scores}
    assert card_text({**card, "not_known": ["one model"]}) == (
        "cluster 1 of 3, accuracy 0.9 on 12 test examples (fewer than 30: this says little); "
        "guessing 0.5, local model 0.8; not known: one model"
    )
    assert card_text({**card, "cluster": None, "not_known": []}).startswith("the mean of all clusters, accuracy")


def test_a_ledger_that_is_damaged_is_as_good_as_none(tmp_path):
    for text in ("{", "[]", '{"sites": 3}', '{"sites": {"a": 1}}'):
        (tmp_path / LEDGER).write_text(text)
        assert read_ledger(tmp_path / LEDGER) == {}
    assert waiting({}) == []


def test_scores_of_references_beside_the_run_are_on_the_card(few, tmp_path):
    """Where the order asks for them one model and local models are trained too, on the same sites."""
    sites = KeepingSites(few, tmp_path)
    order = make_order(tmp_path, few.names)
    carry(replace(order, settings={**order.settings, "references": True}), sites, tmp_path)
    card = json.loads((sites.store(few.names[1]).folder / CURRENT / CARD).read_text())
    for what, name in (("one model", "fedavg"), ("local model", "local")):
        rows = {row["client"]: float(row["accuracy"]) for row in load_rows(tmp_path / "run" / "references" / name)}
        assert card["scores"][what] == rows[few.names[1]]
    assert card["not_known"] == []
    assert load_summary(tmp_path / "run")["verdict"]["text"]
    status = read_board(Path(order.board))
    assert status["record"] == load_rounds(tmp_path / "run")[-1], "its scores are the run's, not those beside it"
    assert status["beside"]["algorithm"] in ("fedavg", "local")
    assert "to compare with" not in headline(status)
    going = headline({**status, "state": RUNNING})
    assert going.endswith(f"; to compare with, {status['beside']['algorithm']} is in round 2 of 2")


def test_a_site_predicts_with_what_it_keeps(tmp_path):
    """As its user would: the script of the folder, on a table; what it writes is what the network answers."""
    rng = np.random.default_rng(1)
    (tmp_path / "all").mkdir()
    for name in ("bern", "chur"):
        dose = rng.normal(size=80)
        frame = pl.DataFrame({"dose": dose, "ward": rng.choice(["east", "west"], 80), "label": dose > 0})
        frame.with_columns(pl.col("label").cast(pl.String)).write_csv(tmp_path / "all" / f"{name}.csv")
    tables = load_own(tmp_path / "all")
    tables.schema.save(tmp_path / "schema.json")  # in the server's folder, so that the run has it
    sites = KeepingSites(tables, tmp_path)
    carry(make_order(tmp_path, tables.names), sites, tmp_path)
    folder = sites.store("bern").folder / CURRENT
    command = [sys.executable, folder / "predict.py", tmp_path / "all" / "bern.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    x, _ = tables.schema.arrays(tmp_path / "all" / "bern.csv")
    with torch.no_grad():
        answers = read_network(folder, answers=False)(torch.from_numpy(x))
    written = pl.read_csv(io.StringIO(done.stdout), infer_schema=False)
    classes = np.array(["false", "true"])[answers.argmax(-1).numpy()]
    assert [str(word).lower() for word in written[written.columns[0]].to_list()] == classes.tolist()
    assert "accuracy" in (folder / "README.md").read_text()
    served = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "--data", str(command[2]), "--client", "bern"])
    assert served.exit_code == 0, served.output
    assert pl.read_csv(io.StringIO(served.stdout), infer_schema=False).columns == written.columns


def test_a_run_of_which_nobody_can_be_placed_says_why(data, few, tmp_path):
    sites = KeepingSites(data, tmp_path)
    order = make_order(tmp_path, few.names)
    carry(order, sites, tmp_path)
    sites.sites[4].policy = Policy(reports=("metrics",))
    carry(replace(order, sites=data.names, job=DELIVER), sites, tmp_path, deliver_again)
    entry = read_ledger(tmp_path / LEDGER)["sites"][data.names[4]]
    assert "could not be placed" in entry["missing"]
    assert entry["away"] is False


def test_delivering_needs_a_finished_run(few, tmp_path):
    with pytest.raises(RunFolderError, match="no finished run"):
        carry(make_order(tmp_path, few.names, job=DELIVER), KeepingSites(few, tmp_path), tmp_path, deliver_again)
    assert read_board(tmp_path / "status.json")["state"] == "failed"
