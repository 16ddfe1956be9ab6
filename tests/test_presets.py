"""A paper's own settings in one word: what they are, that the user's stay, and that every value can be used."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from inspect import signature

import pytest
from typer.testing import CliRunner

from coterie.algorithms import algorithms, build_algorithm, parts
from coterie.cli.main import app
from coterie.data import parse_partition
from coterie.errors import UnknownName, UsageError
from coterie.experiments.papers import added_lines, expand, papers
from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings, load_settings, make_settings
from coterie.models.zoo import build_model

PRESETS = [papers.build(name) for name in papers]
EACH = pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)


def settings_as(paper, algorithm, **said):
    return make_settings({"as": paper, "algorithm": algorithm, **said})


def test_as_the_thesis_did():
    found = settings_as("thesis", "ifca+cam", data="cifar-10")
    wanted = Settings(
        "ifca(start=random)+cam(warmup=30)",
        data="cifar-10",
        rounds=100,
        clients=200,
        partition="dirichlet(0.1,10)",
        clusters=10,
        steps=10,
        batch=32,
        lr=0.001,
        momentum=0.9,
        model="lenet",
    )
    assert found == wanted
    assert settings_as("thesis", "fedavg").data == "fashion-mnist"
    nets = {"fashion-mnist": "cnn", "medmnist(pathmnist)": "lenet", "medmnist(tissuemnist,file=x.npz)": "cnn"}
    assert {data: settings_as("thesis", "fedavg", data=data).model for data in nets} == nets


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("wecfl", "wecfl(layer=linear,shots=10)"),
        ("fesem+cks", "fesem(layer=linear,shots=10)+cks"),
        ("fesem+cam", "fesem(layer=linear)+cam(warmup=30)"),
        ("fedprox", "fedprox(strength=0.95)"),
        ("fedavg-ensemble", "fedavg-ensemble(members=10)"),
        ("fedavg+finetune", "fedavg+finetune"),
        ("vote", "vote(first=fedavg,second=ifca(start=random))"),
        (
            "vote(ifca,wecfl(shots=3),clusters=4)",
            "vote(first=ifca(start=random),second=wecfl(shots=3,layer=linear),clusters=4)",
        ),
    ],
)
def test_the_thesis_arguments(text, full):
    assert settings_as("thesis", text).algorithm == full


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("mnist", (60, 1.0, 0.02, 10, 1200, "rotation(0,90,180,270)", "cnn-lcfl", None)),
        ("cifar-10", (200, 0.1, 0.02, 5, 200, "rotation(0,180)", None, None)),
        ("emnist(byclass)", (100, 0.3, 0.03, 5, 200, "classes(3)", None, "a..j")),
        ("femnist(./leaf)", (100, 0.3, 0.03, 5, 200, "classes(3)", None, "a..j")),
    ],
)
def test_as_lcfl_did(data, wanted):
    found = settings_as("lcfl", "lcfl", data=data)
    names = ("rounds", "participation", "lr", "epochs", "clients", "partition", "model", "classes")
    assert tuple(getattr(found, name) for name in names) == wanted
    assert (found.algorithm, found.batch, found.lr_decay, found.momentum, found.clusters) == (
        "lcfl(warmup=5,iterations=10)",
        20,
        0.99,
        0.0,
        10,
    )


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("mnist", (80, 4, "table", "cnn-joint")),
        ("fashion-mnist", (80, 4, "table", "cnn-joint")),
        ("cifar-10", (80, 4, "table", "lenet")),
        ("emnist", (200, 8, "classes(40,40,groups=8)", "cnn-joint(kernel=5)")),
    ],
)
def test_as_joint_did(data, wanted):
    found = settings_as("joint", "joint", data=data)
    assert (found.clients, found.clusters, found.partition, found.model) == wanted
    assert found.algorithm == "joint(strength=0.2,similarity=cosine,total=true,pinned=true)"
    assert (found.steps, found.momentum) == (1, 0.0)
    assert (found.rounds, found.lr, found.batch) == (20, None, 32), "not said, so they are ours"


@pytest.mark.parametrize(
    ("data", "rounds", "batch", "model"),
    [("mnist", 50, 32, "tiny-vgg"), ("fashion-mnist", 50, 32, "tiny-vgg"), ("cifar-10", 80, 64, "resnet34")],
)
def test_as_ocfl_did(data, rounds, batch, model):
    found = settings_as("ocfl", "ocfl-hdbscan", data=data)
    assert (found.rounds, found.batch, found.model) == (rounds, batch, model)
    assert (found.clients, found.partition, found.clusters, found.epochs) == (15, "blocks", 3, 3)
    assert (found.lr, found.momentum, found.algorithm) == (0.01, 0.0, "ocfl-hdbscan(weights=uniform)")
    assert settings_as("ocfl", "sattler").algorithm == "sattler(eps1=0.35,eps2=0.35,relative=false,least=none)"


def test_whatever_the_user_says_stays():
    said = {"rounds": 7, "lr": 0.5, "epochs": 2, "clusters": 5, "partition": "iid", "model": "mlp"}
    found = settings_as("thesis", "wecfl(3, head, shots=none)+cam(warmup=4)", **said)
    assert {name: getattr(found, name) for name in said} == said
    assert found.steps is None, "the paper's steps are not meant where the user says epochs"
    assert found.algorithm == "wecfl(3, head, shots=none)+cam(warmup=4)"
    assert found.batch == 32


@pytest.mark.parametrize("data", ["digits", "hapt", "./hospitals", "all.csv"])
def test_on_other_data_only_the_training_is_the_papers(data):
    found = settings_as("lcfl", "ifca", data=data)
    assert (found.rounds, found.epochs, found.lr, found.batch) == (60, 10, 0.02, 20)
    assert (found.clients, found.partition, found.clusters, found.model, found.classes) == (None,) * 5


def test_an_unknown_paper_is_refused():
    with pytest.raises(UnknownName, match="unknown paper 'theses'; did you mean 'thesis'"):
        settings_as("theses", "ifca")
    with pytest.raises(UsageError, match="as is 3; it must be the name of a paper: thesis, lcfl, joint, ocfl"):
        settings_as(3, "ifca")


def test_what_is_no_text_is_refused_as_without_a_paper():
    for wrong in ({"algorithm": 3}, {"algorithm": "ifca", "data": 3}):
        with pytest.raises(UsageError, match=r"the command line: .* is 3; it must be a text"):
            make_settings({"as": "thesis", **wrong})
    with pytest.raises(UsageError, match="has no algorithm; add algorithm ="):
        make_settings({"as": "thesis"})


def test_nothing_is_added_or_told_where_no_paper_is_named():
    table = {"algorithm": "ifca", "rounds": 3}
    assert expand(table) == table
    assert added_lines(table) == []


def test_an_experiment_file_names_a_paper_and_overrides_it_and_flags_override_both(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('as = "ocfl"\nalgorithm = "ocfl-kmeans"\ndata = "cifar-10"\nrounds = 9\n')
    found = load_settings(file, {"batch": 8})
    assert (found.rounds, found.batch, found.epochs, found.algorithm) == (9, 8, 3, "ocfl-kmeans(weights=uniform)")


SMALL = ["--data", "digits", "--rounds", "1", "--steps", "1", "--clients", "6", "--partition", "rotation(0,180)"]


def test_what_the_paper_adds_is_told_and_the_folder_holds_all_of_it(tmp_path):
    out = tmp_path / "run"
    done = CliRunner().invoke(app, ["run", "ifca", "--as", "thesis", *SMALL, "--out", str(out), "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "as thesis: batch=32, lr=0.001, momentum=0.9, 5 seeds (compare with --seeds 1..5)",
        "as thesis: ifca is ifca(start=random)",
    ]
    config = tomllib.loads((out / "config.toml").read_text())
    assert (config["algorithm"], config["lr"]) == ("ifca(start=random)", 0.001)
    assert "as" not in config
    again = run_settings(load_settings(out / "config.toml", {}))
    assert again.summary["accuracy"] == json.loads(done.stdout)["accuracy"]


def test_a_comparison_as_a_paper_has_the_papers_arguments_and_tells_them_once(tmp_path):
    words = ["compare", "fedavg", "ifca", "wecfl", "--as", "thesis", *SMALL, "--seeds", "1", "--out", str(tmp_path)]
    short = CliRunner().invoke(app, words)
    assert (short.exit_code, "wecfl(layer=linear,shots=10) needs at least 10 " in short.stderr) == (2, True)
    done = CliRunner().invoke(app, [*words, "--rounds", "10", "--no-local", "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout)) == ["fedavg", "ifca(start=random)", "wecfl(layer=linear,shots=10)"]
    assert len(done.stderr.splitlines()) == 3


def test_data_show_and_tune_take_a_paper_too(tmp_path):
    shown = CliRunner().invoke(
        app, ["data", "show", "digits", "--as", "ocfl", "--clients", "15", "--partition", "blocks"]
    )
    assert shown.exit_code == 0, shown.output
    options = ["--over", "batch=8,16", "--out", str(tmp_path), "--quiet", "--json"]
    tuned = CliRunner().invoke(app, ["tune", "fedprox", "--as", "thesis", *SMALL, *options])
    assert tuned.exit_code == 0, tuned.output
    best = tomllib.loads((tmp_path / "best.toml").read_text())
    assert (best["algorithm"], best["lr"]) == ("fedprox(strength=0.95)", 0.001)


def every_setting(preset):
    yield from preset.settings.items()
    for own in preset.data.values():
        yield from own.items()


@EACH
def test_every_value_is_one_that_can_be_set(preset):
    for data in (None, *preset.data):
        settings_as(preset.name, "fedavg", **({} if data is None else {"data": data}))
    for name, said in every_setting(preset):
        if name == "partition":
            assert parse_partition(said.value).text == said.value
        if name == "model":
            assert build_model(said.value, (3, 32, 32), 10).text == said.value
    for each in preset.arguments:
        for owner in each.of:
            assert each.name in parts.arguments(owner)


@EACH
@pytest.mark.parametrize("name", list(algorithms))
def test_every_algorithm_can_be_built_as_a_paper(preset, name):
    full = settings_as(preset.name, name)
    assert build_algorithm(full.algorithm, full.clusters, full.fit()).name == full.algorithm
    assert settings_as(preset.name, full.algorithm) == full, "what is spelled out is not spelled again"


@EACH
def test_a_reason_is_given_exactly_where_ours_differs(preset):
    ours = {f.name: f.default for f in fields(Settings)}
    for name, said in every_setting(preset):
        assert said.source
        if ours[name] is not None:
            assert bool(said.why) == (said.value != ours[name]), name
    for each in preset.arguments:
        for owner in each.of:
            default = signature(parts.find(owner)).parameters[each.name].default
            assert bool(each.said.why) == (each.said.value != default), (owner, each.name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ifca", "--as thesis: start=random (algorithms 1 to 5); ours farthest: random starts may merge"),
        ("thesis", "rounds=100 (section 3.5.2); ours 20: "),
        ("lcfl", "mnist: clients=1200 (section V-A); ours: 200 take"),
        ("lcfl", "--as lcfl: warmup=5"),
        ("papers", "ocfl"),
    ],
)
def test_list_shows_the_papers_values_beside_ours(name, words):
    assert words in CliRunner().invoke(app, ["list", name]).stdout
