"""A real federation of three tables: the sites agree on a schema, train, and end with a model each, come what may."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import ExitStack

import numpy as np
import polars as pl
import pytest

pytest.importorskip("flwr")

from federations import agent_again, kill, site_folder, train, wait_for
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.data import Schema, load_own
from coterie.deploy import trial as trials
from coterie.deploy.config import SITE
from coterie.deploy.delivery import read_ledger, waiting
from coterie.deploy.model_store import CARD, CURRENT, MODELS, ModelStore
from coterie.deploy.run_control import follow, make_delivery, submit
from coterie.deploy.server import deliver_to_returned, serving
from coterie.deploy.status import is_alive, read_board
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.settings import Settings
from coterie.experiments.summary import load_rows

SITES = BERN, CHUR, GENF = ("bern", "chur", "genf")
SETTINGS = Settings("wecfl", clusters=2, model="mlp(4)", rounds=2)


def table(seed: int, sign: float, rare: int = 0) -> pl.DataFrame:
    """The label follows the dose, or its opposite; ``rare`` rows are of a ward that nobody else has."""
    rng = np.random.default_rng(seed)
    dose = rng.normal(size=90)
    ward = np.where(np.arange(90) < rare, "attic", rng.choice(["east", "west"], 90))
    return pl.DataFrame({"dose": dose, "ward": ward, "label": np.where(sign * dose > 0, "ill", "well")})


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Server and three sites with tables and no schema; one has a word in too few rows to be named."""
    folder = tmp_path_factory.mktemp("h")
    (folder / "all").mkdir()
    for at, name in enumerate(SITES):
        table(at, -1.0 if name == CHUR else 1.0).write_csv(folder / "all" / f"{name}.csv")
    data, write = load_own(folder / "all"), trials.write_trial

    def write_tables(data, place, proxy):
        server = write(data, place, proxy)
        for at, name in enumerate(SITES):
            home = place / "sites" / name
            table(at, -1.0 if name == CHUR else 1.0, rare=3 * (name == GENF)).write_csv(home / "own.csv")
            trials.set_keys(home / SITE, data="own.csv")
        return server

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trials, "write_trial", write_tables)
        with trials.trial(data, folder / "f", proxy=False, configure={"timeout": 20}) as found:
            yield found


@pytest.fixture(scope="module")
def revived():
    """What tests start again lives as long as the federation."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def agents(federation):
    """The agent of each site, the last that was started."""
    return {name: federation.sites[name]["agent"] for name in SITES}


@pytest.fixture(scope="module")
def first(federation, tmp_path_factory):
    """The folder of a run that ended with a hand-over."""
    out = tmp_path_factory.mktemp("runs") / "first"
    train(federation, SETTINGS, out, deliver=True)
    return out


@pytest.fixture(scope="module")
def second(first):
    """The same run under another name, which is another version."""
    return shutil.copytree(first, first.with_name("second"))


def store(federation, name) -> ModelStore:
    return ModelStore(site_folder(federation, name) / MODELS)


def card(federation, name) -> dict:
    return json.loads((store(federation, name).folder / CURRENT / CARD).read_text())


def asked(federation, name) -> bool:
    """Whether a site was asked in the order that is carried out now."""
    status = read_board(federation.place.board)
    return status is not None and status["sites"][name]["now"] == "asked"


def said(*words) -> str:
    result = CliRunner().invoke(app, ["federate", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_run_ends_with_a_schema_and_a_model_at_every_site_that_fits(federation, first):
    """The third site has three rows of a word that it may not name: it says so at home, and is missing."""
    scored = {row["client"]: row["accuracy"] for row in load_rows(first)}
    for name in (BERN, CHUR):
        assert card(federation, name)["scores"]["this model"] == pytest.approx(float(scored[name]), abs=1e-9)
        kept = [site_folder(federation, name), store(federation, name).folder / CURRENT, first]
        assert len({Schema.load(folder / "schema.json") for folder in kept}) == 1
        log = (site_folder(federation, name) / "logs" / "agent.log").read_text()
        assert "is here: cluster" in log.replace("\n", " ")
    assert all(GENF in record["missing"] for record in load_rounds(first))
    log = (site_folder(federation, GENF) / "logs" / "agent.log").read_text()
    assert "does not fit the schema" in log
    assert "'attic'" in log
    assert "attic" not in (federation.place.folder / "status.json").read_text() + (first / "schema.json").read_text()
    assert store(federation, BERN).current() in said("status", "--folder", federation.place.folder).replace("\n", "")


def test_assign_reads_a_newcomer_s_table_by_the_schema_that_was_agreed(first, tmp_path):
    table(9, 1.0).write_csv(tmp_path / "new.csv")
    result = CliRunner().invoke(app, ["assign", str(first), "--data", str(tmp_path / "new.csv")])
    assert result.exit_code == 0, result.output
    assert "serves it with accuracy" in result.stdout


def test_a_site_that_took_no_part_is_placed_and_served_once_its_table_fits(federation, first, agents, revived):
    """It is like bern, so that it gets bern's model."""
    kill(agents[GENF])
    table(2, 1.0).write_csv(site_folder(federation, GENF) / "own.csv")
    agents[GENF] = revived.enter_context(agent_again(federation, GENF))
    assert "3 of 3 sites have the model" in said("deliver", "--folder", federation.place.folder)
    clusters = {name: entry["cluster"] for name, entry in read_ledger(federation.place.ledger)["sites"].items()}
    assert clusters[GENF] == clusters[BERN]
    assert store(federation, GENF).current() == store(federation, BERN).current()


def test_killed_during_a_delivery_a_site_keeps_its_old_model_and_a_server_goes_on(federation, second, agents, revived):
    """Two agents are held when they are asked; one is killed, then the server. The other gets the model from the server
    that was started again, and the killed one when it is back.
    """
    old = store(federation, BERN).current()
    for name in (CHUR, BERN):
        os.killpg(agents[name].process.pid, signal.SIGSTOP)
    submit(federation.place, make_delivery(federation.place, str(second)))
    wait_for(lambda: asked(federation, CHUR) and asked(federation, BERN), 60)
    kill(agents[BERN])
    for program in federation.server:
        kill(program)
    wait_for(lambda: not is_alive(read_board(federation.place.board)))
    assert {store(federation, name).current() for name in (CHUR, BERN)} == {old}
    os.killpg(agents[CHUR].process.pid, signal.SIGCONT)
    revived.enter_context(serving(federation.place.folder, proxy=False))
    follow(federation.place, lambda record: None)
    new = read_ledger(federation.place.ledger)["version"]
    assert BERN in waiting(read_ledger(federation.place.ledger))
    assert [each.name for each in store(federation, BERN).versions()] == [old]
    assert (store(federation, BERN).folder / CURRENT / CARD).exists()
    agents[BERN] = revived.enter_context(agent_again(federation, BERN))
    wait_for(lambda: deliver_to_returned(federation.place), pause=1.0)
    follow(federation.place, lambda record: None)
    assert {store(federation, name).current() for name in SITES} == {new}
    assert new != old
    assert deliver_to_returned(federation.place) == []


def test_a_site_goes_back_to_the_model_before(federation, second):
    folder = site_folder(federation, CHUR)
    new, old = (each.name for each in reversed(store(federation, CHUR).versions()))
    assert f"{old} is in use now" in said("rollback", "--folder", folder)
    assert store(federation, CHUR).current() == old
    listed = json.loads(said("models", "--folder", folder, "--json"))
    assert [(each["version"], each["current"]) for each in listed] == [(old, True), (new, False)]
    assert "rolled back" in said("models", "--folder", folder)
