"""The report of a run or a comparison: its sections, its words, its figures as files, whatever the folder holds yet."""

import json
import shutil
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.errors import RunFolderError, UsageError
from coterie.experiments.main_score import main_score
from coterie.experiments.run import run_settings
from coterie.experiments.run_folder import CLIENTS, SKETCHES, SUMMARY
from coterie.experiments.session import unseen
from coterie.experiments.settings import Settings, make_settings
from coterie.experiments.sweep import folder_for, grid, run_all
from coterie.reporting.compared import compared
from coterie.reporting.report import client_table, figure_files
from coterie.reporting.report.collecting import collect
from coterie.reporting.report.page import compare_command, page, sections, setting_flags, title_of
from coterie.reporting.report.parts import parts
from coterie.reporting.report.verdicts import (
    gains_in_words,
    headline,
    losses_in_words,
    single_table,
    verdict_body,
    verdict_of,
)

SETTINGS = Settings(
    "wecfl",
    clients=8,
    clusters=2,
    partition="rotation(0,180)",
    model="mlp(8)",
    steps=2,
    rounds=4,
    threads=1,
    references=True,
)
SECTIONS = ["verdict", "curves", "clusters", "map", "similarity", "temperature", "apart", "clients", "cost", "again"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "run"
    run_settings(SETTINGS, out)
    return out


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The folder of a comparison of two methods on two seeds, as compare makes it."""
    out = tmp_path_factory.mktemp("report") / "comparison"
    plan = grid(replace(SETTINGS, rounds=2), ["ifca", "local", "fedavg"], [1, 2])
    found = compared(run_all(plan, partial(folder_for, out=out), unseen), None, out)
    (out / "comparison.json").write_text(found.to_json())
    return out


class Reader(HTMLParser):
    """Reads a page: texts, ids, what it loads from elsewhere, and whether elements are closed in order."""

    def __init__(self, content):
        super().__init__()
        self.open, self.ids, self.loaded, self.words = [], [], [], []
        self.feed(content)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids += [given["id"]] if "id" in given else []
        self.loaded += [
            value for name, value in attrs if name in ("src", "href") and not value.startswith(("#", "data:"))
        ]
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(folder):
    content = collect(folder)
    return Reader(page(title_of(content), sections(content)))


def test_a_page_has_every_section_once_is_well_formed_and_loads_nothing(run):
    found = read(run)
    assert len(set(found.ids)) == len(found.ids)
    assert [each for each in found.ids if each in SECTIONS] == SECTIONS
    assert found.loaded == []


def test_every_figure_of_a_run_is_there(run):
    wanted = {"accuracy", "macro-f1", "worst", "test-loss", "sizes", "flow", "found-true", "agreement", "map-pca"}
    wanted |= {"map-tsne", "similarity", "temperature", "learning-gap", "gains"}
    assert {f"figure-{each}" for each in wanted} <= set(read(run).ids)


def test_the_verdict_is_said_in_words_with_what_is_gained_and_who_loses(run):
    text = " ".join(read(run).words)
    verdict = json.loads((run / SUMMARY).read_text())["verdict"]["against"]["one_model"]
    assert f"Over one model the gain in accuracy is {100 * verdict['change']:+.1f} points (" in text
    worse = f"{verdict['worse']} of 8 clients are worse off, by" if verdict["worse"] else "No client is worse off."
    assert worse in text


def test_a_comparison_says_how_much_those_lose_who_are_worse_off_what_a_client_is_and_what_methods_cost(both):
    text = " ".join(read(both).words)
    local = collect(both).comparison.verdicts["local"].against["one_model"]
    assert local.worse
    assert f"{100 * local.lost:.1f} on average" in text
    assert "Every seed draws its own clients: 8 clients and 2 seeds are 16." in text
    cost = next(each for each in sections(collect(both)) if each.id == "cost").body
    assert [cost.count(f">{name}</th>") for name in ("ifca", "local", "fedavg")] == [1, 1, 1]
    assert cost.count("models down per client") == 1


def test_the_clusters_of_methods_that_have_none_are_no_columns(both):
    table = next(each for each in sections(collect(both)) if each.id == "clients").body
    assert ["cluster,\nlocal" in table, "cluster,\nfedavg" in table, "accuracy,\nlocal" in table] == [
        False,
        False,
        True,
    ]


def test_the_page_has_every_caution_of_a_verdict(run):
    content = collect(run)
    few = replace(content, runs={"wecfl": [replace(content.run, rows=content.run.rows[:3])]})
    assert "only 3 clients: the intervals say little of other clients" in verdict_body(few)


def test_the_page_of_a_run_says_what_to_try_where_local_models_do_better_that_of_a_comparison_does_not(run, both):
    content = collect(run)
    rows = [{**row, "local_accuracy": 1.0, "guess_accuracy": 0.0, "accuracy": 0.5} for row in content.run.rows]
    worse = verdict_body(replace(content, runs={"wecfl": [replace(content.run, rows=rows)]}))
    assert worse.count("<li>local models do better: compare with more clusters, and with +finetune") == 1
    assert "+finetune" not in verdict_body(collect(both))


def test_losses_name_the_client_that_loses_most():
    rows = [
        {"client": "a", "accuracy": "0.5", "local_accuracy": "0.75"},
        {"client": "b", "accuracy": "0.5", "local_accuracy": "0.6"},
        {"client": "c", "accuracy": "0.9", "local_accuracy": "0.6"},
        {"client": "d", "accuracy": "", "local_accuracy": "0.6"},
    ]
    assert losses_in_words(rows, "local", main_score(False)) == "17.5 on average, a most: 25.0"
    assert losses_in_words(rows[2:], "local", main_score(False)) == "nobody"


def with_auroc(run, **changed):
    """The content of a run that was judged by AUROC, with a changed row of its first client."""
    content = collect(run).run
    rows = [{**row, "metric": "0.8", "guess_metric": "0.5"} for row in content.rows]
    summary = {**content.summary, "metric": 0.8, "metric_name": "auroc", "worst_judged": 0.653}
    return replace(content, summary=summary, rows=[{**rows[0], **changed}, *rows[1:]])


def test_the_worst_client_is_shown_as_the_score_that_it_is_worst_in(run):
    found = with_auroc(run)
    shown = str(headline(found, verdict_of(found)))
    assert "<dd>0.653</dd>" in shown
    assert "65.3 %" not in shown


def test_the_verdict_names_clients_without_a_score_its_tests_and_its_weights(run):
    found = with_auroc(run, metric="")
    verdict = verdict_of(found)
    assert any(line.startswith("auroc: 1 of 8 clients have no value") for line in verdict.cautions)
    words = str(single_table(found, {"wecfl": verdict}))
    assert "clients count by test examples" in words
    assert "Wilcoxon" in words
    assert ">0.016<" in words, "seven clients that are all better: 2 / 2 ** 7"
    lost = verdict_of(with_auroc(run, metric="", loss="inf"))
    assert "1 of 8 clients diverged" in lost.sentence
    assert gains_in_words(found, lost) == []


def test_an_unfinished_run_gives_a_page_too(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    for name in (SUMMARY, CLIENTS, SKETCHES, "apart.json"):
        (folder / name).unlink()
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:9])
    text = " ".join(read(folder).words)
    assert "2 of 4 rounds are on this page" in text
    assert "No map: the folder has no sketches" in text
    assert "come when the run is finished" in text
    (folder / "rounds.jsonl").unlink()
    (folder / "labels.npy").unlink()
    assert "0 of 4 rounds are on this page" in " ".join(read(folder).words)


def test_sections_of_a_running_run_change_where_it_goes_on(run, tmp_path):
    """A live page replaces what has changed, by id."""
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / SUMMARY).unlink()
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    found = []
    for count in (2, 3):
        (folder / "rounds.jsonl").write_bytes(b"".join(lines[:count]))
        found.append({each.id: each.body for each in sections(collect(folder))})
    assert found[0]["curves"] != found[1]["curves"]
    assert found[0]["again"] == found[1]["again"]


def test_names_of_clients_are_text_wherever_they_stand(run, tmp_path):
    folder, evil = shutil.copytree(run, tmp_path / "run"), "<script>alert(1)</script>\"'&"
    for path in (folder, folder / "references" / "fedavg", folder / "references" / "local"):
        rows = (path / CLIENTS).read_text().replace("client-003", '"' + evil.replace('"', '""') + '"')
        (path / CLIENTS).write_text(rows)
        (path / "hashes.txt").write_text("")
        (path / "config.toml").write_text((path / "config.toml").read_text().replace("format = 2\n", ""))
    content = collect(folder)
    written = page(title_of(content), sections(content))
    assert written.count("<script") == 1
    assert evil in "".join(Reader(written).words)


def test_a_comparison_has_all_methods_and_its_baselines(both):
    found = read(both)
    text = " ".join(found.words)
    assert "figure-gains" in found.ids
    assert "figure-ifca-sizes" in found.ids
    assert "figure-fedavg-sizes" not in found.ids
    assert "accuracy,\nifca" in text
    assert list(collect(both).runs) == ["ifca", "local", "fedavg"]


def test_an_unfinished_comparison_compares_what_is_finished(both, tmp_path):
    folder = shutil.copytree(both, tmp_path / "comparison")
    (folder / "comparison.json").unlink()
    (folder / "ifca" / "seed-2" / SUMMARY).unlink()
    content = collect(folder)
    assert {len(runs) for runs in content.comparison.summaries.values()} == {1}
    assert "5 of 6 runs that have begun are finished" in " ".join(read(folder).words)
    (folder / "ifca" / "seed-1" / SUMMARY).unlink()
    assert collect(folder).comparison is None
    read(folder)


def test_the_command_of_a_comparison_gives_its_settings(both):
    words = compare_command(collect(both)).split(" --")
    assert words[0] == "coterie compare ifca local fedavg"
    assert words[1] == "seeds 1,2"
    settings = collect(both).run.settings
    given = dict(each[2:].split(" ", 1) for each in setting_flags(settings))
    again = make_settings(
        {"algorithm": "ifca"} | {name.replace("-", "_"): _value(value) for name, value in given.items()}
    )
    assert replace(again, seed=settings.seed, references=False) == settings


def _value(text):
    text = text.strip("'")
    return float(text) if "." in text else int(text) if text.isdigit() else text


def test_of_many_clients_the_table_shows_those_served_worst(monkeypatch):
    monkeypatch.setattr(client_table, "MOST_ROWS", 2)
    rows = [{"client": str(i), "accuracy": value} for i, value in enumerate(("0.9", "0.1", "0.5"))]
    assert [row["client"] for row in client_table.worst_first(rows, main_score(False))] == ["1", "2"]


def test_the_command_writes_page_and_figures(run, tmp_path, monkeypatch):
    some = [each for part in parts(collect(run)) for each in part.figures if each.id in ("flow", "sizes")]
    monkeypatch.setattr(figure_files, "all_figures", lambda content, verdicts: some)
    asked = ["report", str(run), "-o", str(tmp_path / "r.html"), "--figures", str(tmp_path / "figures")]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "r.html").stat().st_size < 300_000
    kinds = {path.suffix for path in (tmp_path / "figures").glob("flow.*")}
    assert kinds == {".png", ".svg", ".csv"}
    assert (tmp_path / "figures" / "flow.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("out", ["missing/r.html", "."])
def test_a_page_that_cannot_be_written_is_one_line(run, tmp_path, out):
    done = CliRunner().invoke(app, ["report", str(run), "-o", str(tmp_path / out)])
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match="holds neither a run nor a comparison; name a folder"):
        collect(tmp_path)


def test_figures_from_python(run, tmp_path):
    loaded = ct.load_run(run)
    assert {"flow", "sizes", "map-pca", "similarity", "accuracy"} <= loaded.plot.figures().keys()
    for draw in (loaded.plot, loaded.plot.flow, loaded.plot.heatmap):
        draw(path=tmp_path / "figure.svg")
        assert "</svg>" in (tmp_path / "figure.svg").read_text()
        (tmp_path / "figure.svg").unlink()
    with pytest.raises(UsageError, match="kind is 'umap'; take tsne or pca"):
        loaded.plot.map("umap")
    with pytest.raises(UsageError, match="score is x; the records of this run have accuracy, macro-f1"):
        loaded.plot.curves("x")
    assert loaded.report(tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_a_run_without_data_for_a_figure_says_so(run):
    loaded = ct.load_run(run)
    with pytest.raises(UsageError, match=r"plot\.temperature: the run has no data for it"):
        replace(loaded.plot, history=[{"round": 0, "clusters": [8], "worst": 0.1}]).temperature()
    assert replace(loaded.plot, sketches=None, groups=None).figures().keys() >= {"flow"}
    assert isinstance(np.asarray(loaded.plot.labels), np.ndarray)
