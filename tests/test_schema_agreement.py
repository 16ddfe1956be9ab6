"""Sites agree on a schema that a simulation would have made of the same tables, and no row leaves any of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from local_sites import LocalSites
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.cli.options import settings_either_way
from coterie.data import Schema, load, load_own
from coterie.data.tables.agreement import OwnTable, agree_on_kinds, agree_on_schema
from coterie.data.tables.reading import Reading
from coterie.deploy.audit import Audit, read_audit
from coterie.deploy.config import load_site
from coterie.deploy.deployment import write_deployment
from coterie.deploy.order import Order
from coterie.deploy.policy import Policy
from coterie.deploy.server_run import carry_out
from coterie.deploy.site_answers import Site
from coterie.deploy.site_programs import build_site, load_data, with_columns
from coterie.deploy.status import StatusBoard, read_board
from coterie.errors import DataError, FederationError, UsageError
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import STATE, load_state
from coterie.experiments.settings import Settings, load_settings, make_settings
from coterie.experiments.table_defaults import TABLES
from coterie.wire import codec
from coterie.wire.remote import PackedReplies
from coterie.wire.schema_messages import facts_table, read_facts, read_kinds, read_sums

OPEN = Policy(least_count=1, least_examples=1)
NAMES = ("bern", "chur", "genf")


def hospital(seed: int, rows: int = 60, **more) -> pl.DataFrame:
    """A table of numbers with large means, words, numbers that are few words, gaps, and a label."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": rng.integers(20, 90, rows) + 1_000_000 * seed,
            "ward": rng.choice(["east", "west", f"only-{seed}"], rows),
            "dose": rng.normal(3.3, 0.1, rows),
            "label": rng.choice(["ill", "well"], rows),
            **more,
        }
    )


def write(folder, tables) -> None:
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        table.write_csv(folder / f"{name}.csv")


class TableSites(LocalSites):
    """Sites with tables and no schema, in this process."""

    def __init__(self, folder, names=NAMES, policy=OPEN, **options) -> None:
        self.names, self.away, self.mute, self.asked = tuple(names), set(), set(), 0
        self.told: dict[str, list[str]] = {name: [] for name in names}
        self.sites = []
        for name in names:
            home = folder / "homes" / name
            home.mkdir(parents=True, exist_ok=True)
            data = load_data(folder / "all" / f"{name}.csv", name, home, self.told[name].append, **options)
            self.sites.append(Site(name, data, policy, Audit(home / "audit.jsonl")))


def run(folder, sites, **changed):
    small = Settings("fedavg", model="mlp(4)", rounds=1, steps=2).table()
    paths = {"out": str(folder / "run"), "board": str(folder / "status.json")}
    given = {"minimum": len(sites.names), "timeout": 1.0, "patience": 0.0, "deliver": False, "settings": small, **paths}
    order = Order(sites=sites.names, **{**given, **changed})
    return carry_out(order, sites, StatusBoard(folder / "status.json", order.run, order.out, order.sites))


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, {}),
        ({"missing": "mean", "seed": 5, "test": 0.3, "validation": 0.2}, {"gaps": [None, 2.5, 7.0] * 20}),
        ({"label": "dose"}, {}),
        ({"label": "grade"}, {"grade": [3, 1, 12] * 20}),
        ({"label": "age", "task": "regression", "ignore": "ward"}, {}),
        ({"label": "age,dose", "ignore": "label"}, {}),
        ({"label": "days,dose", "missing": "mean", "ignore": "label"}, {"days": [1.5, 2.5, 7.0] * 20}),
        ({"label": "fever,pain", "ignore": "label"}, {"fever": [0, 1, 1] * 20, "pain": [True, False, True] * 20}),
    ],
)
def test_the_schema_is_that_of_a_simulation_bit_for_bit(tmp_path, options, more):
    write(tmp_path / "all", {name: hospital(i, **more) for i, name in enumerate(NAMES)})
    expected = load_own(tmp_path / "all", **options)
    sites = TableSites(tmp_path, **options)
    run(tmp_path, sites)
    for file in (
        tmp_path / "schema.json",
        tmp_path / "run" / "schema.json",
        tmp_path / "homes" / "chur" / "schema.json",
    ):
        assert Schema.load(file) == expected.schema
    for at, site in enumerate(sites.sites):
        np.testing.assert_array_equal(site.data.train.x, expected.train.of(at)[0])
        np.testing.assert_array_equal(site.data.test.y, expected.test.of(at)[1])


def test_a_run_that_agrees_on_a_schema_trains_as_a_simulation_of_the_same_tables(tmp_path):
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    words = {"algorithm": "fedavg", "rounds": 2, "data": str(tmp_path / "all")}
    simulated = run_settings(make_settings({**words, "plan": "native"}, "test"))
    arrays, tables = settings_either_way("fedavg", {"data": "federation", "rounds": 2})
    assert (arrays.model, tables.model) == (None, "tabular")
    run(tmp_path, TableSites(tmp_path), settings=arrays.table(), tables=tables.table())
    federated = load_settings(tmp_path / "run" / "config.toml", {})
    for name in TABLES:
        assert getattr(federated, name) == getattr(simulated.settings, name), name
    np.testing.assert_array_equal(load_state(tmp_path / "run" / STATE).stack.params, simulated.state.stack.params)


def test_sites_with_arrays_train_with_the_general_defaults(tmp_path):
    data = load("digits").partition("iid", clients=2, seed=1)
    arrays, tables = settings_either_way("fedavg", {"data": "federation", "rounds": 1, "steps": 1})
    run(tmp_path, LocalSites(data, tmp_path), settings=arrays.table(), tables=tables.table())
    assert load_settings(tmp_path / "run" / "config.toml", {}).optimizer == arrays.optimizer


def test_no_row_leaves_a_site_and_its_log_says_what_did(tmp_path):
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    sites = TableSites(tmp_path)
    sent = []
    for site in sites.sites:
        site.answer = lambda request, honest=site.answer: sent.append(honest(request)) or sent[-1]
    run(tmp_path, sites)
    told = [codec.unwrap(reply).header for reply in sent]
    assert [sorted(header.keys() - {"problem"}) for header in told[3:6]] == [["facts"]] * 3
    lines = read_audit(tmp_path / "homes" / "bern" / "audit.jsonl")
    assert [line["kind"] for line in lines[:5]] == ["hello", "columns", "sums", "schema", "hello"]
    assert {line["outcome"] for line in lines} == {"answered"}
    assert lines[1]["asked"] == "how many values of each column are numbers or missing"


def test_a_second_run_and_a_later_site_use_the_schema_that_is_there(tmp_path):
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    two = TableSites(tmp_path, NAMES[:2])
    run(tmp_path, two)
    before = (tmp_path / "schema.json").read_bytes()
    pl.read_csv(tmp_path / "all" / "genf.csv").with_columns(ward=pl.lit("east")).write_csv(
        tmp_path / "all" / "genf.csv"
    )
    three = TableSites(tmp_path)
    assert [site.unread is None for site in three.sites] == [True, True, False]
    run(tmp_path, three, out=str(tmp_path / "second"))
    assert (tmp_path / "schema.json").read_bytes() == before
    assert (tmp_path / "homes" / "genf" / "schema.json").read_bytes() == before
    assert "this site's table fits it" in three.told["genf"][0]


def test_a_site_whose_table_does_not_fit_is_told_every_problem_and_the_server_no_value(tmp_path):
    """One line for each kind of problem at the site; the server learns the columns. Others go on without it."""
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    run(tmp_path, TableSites(tmp_path, NAMES[:2]))
    bad = hospital(7, ward=["secret-ward"] * 60, dose=["3.1"] * 58 + ["secret-dose", "4"])
    bad.write_csv(tmp_path / "all" / "genf.csv")
    sites = TableSites(tmp_path)
    done = run(tmp_path, sites, out=str(tmp_path / "second"), quorum=2)
    assert "genf" in done.history[0]["missing"]
    assert len(sites.told["genf"]) == 2
    assert "does not fit the schema" in sites.told["genf"][0]
    assert "secret-ward" in "".join(sites.told["genf"])
    assert not (tmp_path / "homes" / "genf" / "schema.json").exists()
    why = "its table does not fit the schema: column 'ward', column 'dose'; its console lists the rows"
    assert done.history[0]["missing"]["genf"] == why
    status = read_board(tmp_path / "status.json")
    assert f"the run begins without genf: {why}" in status["notes"]
    assert status["sites"]["genf"]["now"] == why
    with pytest.raises(
        FederationError, match=r"2 sites fit the schema, 3 are needed; genf: its table does not"
    ) as error:
        run(tmp_path, TableSites(tmp_path), out=str(tmp_path / "third"))
    assert "column 'ward', column 'dose'" in str(error.value)
    assert "secret" not in str(error.value)


def test_a_schema_that_fits_no_site_is_not_kept_and_the_next_run_agrees_on_another(tmp_path):
    """A word in fewer rows of every site than may be named; then the rows are left out."""
    rare = ["attic"] * 3 + ["east", "west", "east"] * 19
    write(tmp_path / "all", {name: hospital(i, ward=rare) for i, name in enumerate(NAMES)})
    strict = Policy(least_examples=1)
    with pytest.raises(FederationError, match="the tables of 0 sites fit the schema"):
        run(tmp_path, TableSites(tmp_path, policy=strict))
    assert not (tmp_path / "schema.json").exists()
    write(tmp_path / "all", {name: hospital(i, ward=rare[3:] + ["west"] * 3) for i, name in enumerate(NAMES)})
    run(tmp_path, TableSites(tmp_path, policy=strict), out=str(tmp_path / "second"))
    assert "attic" not in (tmp_path / "schema.json").read_text()


def test_a_schema_stays_where_a_site_did_not_answer_since_it_may_have_taken_it(tmp_path):
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})

    class Lost(TableSites):
        def __call__(self, requests):
            packed = super().__call__(requests)
            lost = {
                at: "its answer was lost" for at, each in requests.items() if codec.decode(each)[1]["kind"] == "schema"
            }
            return PackedReplies({at: each for at, each in packed.answers.items() if at not in lost}, lost)

    with pytest.raises(FederationError, match="its answer was lost"):
        run(tmp_path, Lost(tmp_path))
    assert (tmp_path / "schema.json").exists()


def test_a_table_that_lacks_values_says_so_at_the_start_in_the_words_of_site_toml(tmp_path):
    """It could fit no schema; a federation finds out before its first run, not after the second exchange."""
    write_deployment(tmp_path / "f", ("bern",), "localhost", reading={"label": "label"})
    home = tmp_path / "f" / "sites" / "bern"
    write(home, {"own": hospital(1, gaps=[None, 2.5, 7.0] * 20, others=[None] + [1.0] * 59)})
    with pytest.raises(DataError) as error:
        build_site(replace(load_site(home), data="own.csv"))
    assert "lacks values of 'gaps' in 20 rows, 'others' in 1 row (words such as" in str(error.value)
    assert 'missing = "indicator" or missing = "mean" in site.toml, the same at all sites' in str(error.value)
    assert build_site(replace(load_site(home), data="own.csv", missing="indicator")).site.unread is not None


@pytest.mark.parametrize("missing", ["error", "mean"])
def test_a_class_that_counts_as_missing_is_named_at_the_start_with_the_label(tmp_path, missing):
    write_deployment(tmp_path / "f", ("bern",), "localhost", reading={"label": "outcome"})
    home = tmp_path / "f" / "sites" / "bern"
    write(home, {"own": hospital(1, outcome=["none", "severe", "none"] * 20)})
    site = replace(load_site(home), data="own.csv", missing=missing)
    with pytest.raises(DataError) as error:
        build_site(site)
    assert (
        "lacks values of the label 'outcome' in 40 rows (words such as none, NA and ? count as missing); fill them in, "
        "or leave rows without a label out with drop_missing_labels = true in site.toml, the same at all sites"
    ) in str(error.value)


def test_a_class_that_counts_as_missing_is_said_where_too_few_are_left(tmp_path):
    outcomes = ["none", "severe", "none"] * 20
    write(tmp_path / "all", {name: hospital(i, outcome=outcomes) for i, name in enumerate(NAMES)})
    sites = TableSites(tmp_path, label="outcome", drop_missing_labels=True)
    assert sites.told["bern"] == [
        "40 rows without a label are left out (words such as none, NA and ? count as missing)"
    ]
    with pytest.raises(FederationError, match=r"name 1 class of 'outcome'; at least 2.*none, NA and \? count as"):
        run(tmp_path, sites)


def test_sites_that_read_gaps_in_another_way_than_the_schema_are_told_how_to_agree_again(tmp_path):
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    run(tmp_path, TableSites(tmp_path))
    (tmp_path / "homes" / "chur" / "schema.json").unlink()
    with pytest.raises(
        FederationError, match=r"missing = 'error', and its site\.toml has missing = 'mean'.*delete schem"
    ):
        run(tmp_path, TableSites(tmp_path, ("chur",), missing="mean"), out=str(tmp_path / "second"))


def test_words_and_means_of_few_rows_are_not_told(tmp_path):
    """The threshold is on rows: 4 of one word, 5 of another; a column with 4 numbers."""
    ward = ["rare"] * 4 + ["frequent"] * 5 + ["usual"] * 51
    few = [1.0, 2.0, 3.0, 4.0] + [None] * 56
    label = ["odd"] * 4 + ["ill", "well"] * 28
    write(tmp_path / "all", {name: hospital(i, ward=ward, few=few, label=label) for i, name in enumerate(NAMES)})
    reading = Reading(missing="mean")
    table = OwnTable(tmp_path / "all" / "bern.csv", "bern", reading)
    for least, words, classes, counted in ((5, ("frequent", "usual"), ("ill", "well"), 0), (4, None, None, 4)):
        facts = table.facts(least)
        assert facts.counts["few"].values == counted
        sums = table.sums(agree_on_kinds({"bern": facts}, reading), least)
        assert sums.categories["ward"] == (words or ("frequent", "rare", "usual"))
        assert sums.classes == (classes or ("ill", "odd", "well"))
    all_told = table.sums(agree_on_kinds({"bern": table.facts()}, reading), 1)
    assert 1 <= all_told.numbers["few"].count <= 4
    assert table.sums(agree_on_kinds({"bern": table.facts()}, reading), 5).numbers["few"].count == 0


def test_a_column_that_identifies_rows_is_named_and_its_words_do_not_leave(tmp_path):
    ids = {name: [f"patient-{i}-{j}" for j in range(60)] for i, name in enumerate(NAMES)}
    write(tmp_path / "all", {name: hospital(i, id=ids[name]) for i, name in enumerate(NAMES)})
    sites = TableSites(tmp_path, policy=Policy(least_examples=1))
    with pytest.raises(
        FederationError, match=r"column 'id' has no word that a site has in enough rows.*leave it out"
    ) as error:
        run(tmp_path, sites)
    assert "least_count" not in str(error.value), "lowered, it would put the ids into everybody's schema.json"
    assert "if it is an id or free text, or join its words to fewer" in str(error.value)
    with pytest.raises(FederationError, match=r"column 'id' has 180 different words in 180 rows; leave it out"):
        run(tmp_path, TableSites(tmp_path), out=str(tmp_path / "open"))


def test_sites_with_other_columns_or_another_way_of_reading_are_named(tmp_path):
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    hospital(1, extra=[1.5] * 60).write_csv(tmp_path / "all" / "chur.csv")
    with pytest.raises(FederationError, match=r"chur has the column 'extra', which bern has not; add it to bern's"):
        run(tmp_path, TableSites(tmp_path))
    sites = TableSites(tmp_path)
    sites.sites[2].unread = replace(sites.sites[2].unread, options={"missing": "mean"})
    with pytest.raises(FederationError, match=r"genf has missing mean in its site.toml where bern has error"):
        run(tmp_path, sites, out=str(tmp_path / "other"))


def test_a_site_may_leave_out_what_others_have_not(tmp_path):
    """``columns`` in site.toml names what is learnt from; the schema is that of tables without the rest."""
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    expected = load_own(tmp_path / "all", ignore="dose").schema
    hospital(1, extra=[1.5] * 60).write_csv(tmp_path / "all" / "chur.csv")
    sites = TableSites(tmp_path)
    for site in sites.sites:
        options = with_columns(site.unread.file, "age, ward", {})
        site.unread = replace(site.unread, options=options)
    run(tmp_path, sites)
    assert Schema.load(tmp_path / "schema.json").features == expected.features
    with pytest.raises(UsageError, match=r"columns in site\.toml names 'height', which"):
        with_columns(tmp_path / "all" / "bern.csv", "age,height", {})


def test_a_site_tells_nothing_if_its_policy_says_so(tmp_path):
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    silent = Policy(reports=("params", "losses", "metrics"), least_examples=1)
    with pytest.raises(FederationError, match=r"no site tells of its columns.*\(reports in its policy.toml\)"):
        run(tmp_path, TableSites(tmp_path, policy=silent))


def test_a_table_without_a_schema_answers_nothing_else(tmp_path):
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    site = TableSites(tmp_path).sites[0]
    for kind in ("task", "deliver"):
        header = codec.unwrap(site.answer(codec.encode({}, kind=kind, run="run", parcel=PARCEL))).header
        assert "no schema yet" in header["problem"] or "no folder for models" in header["problem"]
    assert "waits" in site.what_it_has or "no schema.json yet" in site.what_it_has


PARCEL = {"version": "a", "algorithm": "fedavg", "rounds": 1, "cluster": 0, "clusters": 1, "sites": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"label": "dose"},
        {"missing": "mean"},
        {"features": []},
        {"features": [{"name": "secret", "kind": "number", "mean": 0.0, "std": 1.0}]},
        {"features": 3},
        None,
    ],
)
def test_a_schema_of_another_label_or_of_other_columns_is_not_taken(tmp_path, change):
    """A server could otherwise make a site train on a column that it never told of."""
    write(tmp_path / "all", {name: hospital(i) for i, name in enumerate(NAMES)})
    good = load_own(tmp_path / "all").schema.as_table()
    site = TableSites(tmp_path).sites[0]
    schema = None if change is None else {**good, **change}
    problem = codec.unwrap(site.answer(codec.encode({}, kind="schema", run="run", schema=schema))).header["problem"]
    expected = ("the schema cannot be read", "another label or other columns", "the schema is one with missing")
    assert any(each in problem for each in expected)
    assert site.unread is not None
    assert not (tmp_path / "homes" / "bern" / "schema.json").exists()
    assert codec.unwrap(site.answer(codec.encode({}, kind="schema", run="run", schema=good))).header["problem"] is None
    again = codec.unwrap(site.answer(codec.encode({}, kind="schema", run="run", schema=good))).header["problem"]
    assert "read already" in again


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    hospital(1).write_csv(folder / "bern.csv")
    reading = Reading()
    table = OwnTable(folder / "bern.csv", "bern", reading)
    facts = table.facts()
    kinds = agree_on_kinds({"bern": facts}, reading)
    plain = json.loads(json.dumps(facts_table(facts, reading)))
    return plain, json.loads(json.dumps(table.sums(kinds).table())), kinds, facts, reading


class TestHostileReplies:
    """What a site sends is checked before anything is made of it."""

    def test_honest_ones_are_read_as_they_were(self, honest):
        plain, sums, kinds, facts, reading = honest
        assert read_facts(plain) == (facts, reading)
        assert read_sums(sums, kinds).table() == sums
        assert read_kinds(json.loads(json.dumps(asdict(kinds)))) == kinds

    @pytest.mark.parametrize(
        "change",
        [
            {"counts": {}},
            {"counts": {"age": [1, 2, 0]}},
            {"counts": {"age": [-1, -1, 0]}},
            {"counts": {"age": [1, 1]}},
            {"counts": {"x" * 2000: [1, 1, 0]}},
            {"counts": [1]},
            {"labels": [[1, 1, 1, True, True]]},
            {"labels": [[1, 2, True, False, True]]},
            {"labels": [[1, 1, True, False, True]] * 2},
            {"labels": []},
            {"labels": 1},
            {"reading": {"label": 3}},
            {"reading": {"label": "x", "ignore": "a"}},
            {"reading": {"lable": "x"}},
            {"reading": None},
            {"more": 1},
        ],
    )
    def test_facts_that_cannot_be_are_refused(self, honest, change):
        with pytest.raises(FederationError):
            read_facts({**honest[0], **change})

    @pytest.mark.parametrize(
        "change",
        [
            {"rows": -1},
            {"rows": 1.5},
            {"rows": 3},
            {"numbers": {}},
            {"numbers": {"age": [60, 1e999, 1.0], "dose": [1, 1.0, 0.0]}},
            {"numbers": {"age": [48, 1.0, -1.0], "dose": [1, 1.0, 0.0]}},
            {"numbers": {"age": [48, "1", 1.0], "dose": [1, 1.0, 0.0]}},
            {"numbers": {"age": [48], "dose": 3}},
            {"categories": {"ward": ["x" * 2000]}},
            {"categories": {"ward": [3]}},
            {"categories": {"ward": ["a"] * 5000}},
            {"categories": {"other": ["a"]}},
            {"classes": [""]},
            {"target": [1, 1.0, 1.0]},
        ],
    )
    def test_sums_that_cannot_be_are_refused(self, honest, change):
        with pytest.raises(FederationError, match="sums"):
            read_sums({**honest[1], **change}, honest[2])


rows = st.lists(
    st.tuples(st.floats(-1e6, 1e6), st.sampled_from(["x", "y", "z"]), st.sampled_from(["no", "yes"])),
    min_size=4,
    max_size=12,
)


@settings(max_examples=40)
@given(st.lists(rows, min_size=2, max_size=4))
def test_any_tables_give_the_schema_of_a_simulation(tmp_path_factory, tables):
    folder = tmp_path_factory.mktemp("tables")
    for at, table in enumerate(tables):
        own = [*table, (0.5, "x", "no"), (1.5, "y", "yes")]
        frame = pl.DataFrame(own, schema=["dose", "ward", "label"], orient="row")
        frame.write_csv(folder / f"site-{at}.csv")
    reading, names = Reading(), [f"site-{at}" for at in range(len(tables))]
    own = {name: OwnTable(folder / f"{name}.csv", name, reading) for name in names}
    facts = {name: table.facts() for name, table in own.items()}
    kinds = agree_on_kinds(facts, reading)
    sums = {name: table.sums(kinds) for name, table in own.items()}
    assert agree_on_schema(facts, sums, kinds, reading) == load_own(folder).schema


def test_several_labels_of_mixed_kinds_are_refused_with_both_names(tmp_path):
    write(tmp_path / "all", {name: hospital(i, fever=[0, 1, 1] * 20) for i, name in enumerate(NAMES)})
    with pytest.raises(FederationError, match=r"'fever' has only 0 and 1, and 'dose' has other numbers"):
        run(tmp_path, TableSites(tmp_path, label="fever,dose"))


def test_one_site_with_another_value_makes_targets_of_all(tmp_path):
    tables = {name: hospital(i, fever=[0, 1, 1] * 20, pain=[0, 1, 1 + (i == 2)] * 20) for i, name in enumerate(NAMES)}
    write(tmp_path / "all", tables)
    with pytest.raises(FederationError, match=r"'fever' has only 0 and 1, and 'pain' has other numbers"):
        run(tmp_path, TableSites(tmp_path, label="fever,pain"))


def test_sums_of_several_targets_are_of_exactly_these(tmp_path):
    hospital(1).write_csv(tmp_path / "bern.csv")
    reading = Reading(label="age,dose")
    table = OwnTable(tmp_path / "bern.csv", "bern", reading)
    kinds = agree_on_kinds({"bern": table.facts()}, reading)
    plain = table.sums(kinds).table()
    assert kinds.targets == ("age", "dose")
    assert plain["numbers"].keys() == {"age", "dose"}
    assert plain["target"] is None
    assert read_sums(plain, kinds).table() == plain
    with pytest.raises(FederationError, match="sums"):
        read_sums(plain, replace(kinds, targets=("age",)))


def test_init_writes_how_tables_are_read_for_all_sites_and_later_ones(tmp_path):
    runner = CliRunner()
    words = ["--label", "ill", "--columns", "age,sex", "--missing", "mean", "--task", "classification"]
    assert runner.invoke(app, ["federate", "init", str(tmp_path / "f"), "--sites", "bern", *words]).exit_code == 0
    assert runner.invoke(app, ["federate", "add-site", str(tmp_path / "f"), "chur"]).exit_code == 0
    for name in ("bern", "chur"):
        text = (tmp_path / "f" / "sites" / name / "site.toml").read_text()
        for line in (
            'label = "ill"',
            'columns = "age,sex"',
            'missing = "mean"',
            "# test = 0.2",
            '# ignore = "id,date"',
        ):
            assert line in text.splitlines()
        assert '# label = "label"' not in text
    wrong = runner.invoke(app, ["federate", "init", str(tmp_path / "g"), "--sites", "bern", "--missing", "guess"])
    assert wrong.exit_code == 2
    assert not (tmp_path / "g").exists()
