"""Trackers: what they are told, that none can stop a run, and that a resumed run goes on where it was tracked."""

from __future__ import annotations

import itertools
import json
import logging
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.cli.main import app
from coterie.errors import UnknownName, UsageError
from coterie.experiments.resuming import check_settings
from coterie.experiments.run_folder import load_rounds
from coterie.experiments.settings import Settings
from coterie.tracking import track as tracking
from coterie.tracking.story import Beginning, Ending, Telling, ending_of, numbers_of


@pytest.fixture(scope="module")
def clients():
    return ct.load("digits").partition("rotation(0,180)", clients=4, seed=1)


def train(clients, folder: Path | None, rounds: int = 2, **options) -> ct.Run:
    return ct.run("wecfl(clusters=2)", clients, "mlp(4)", rounds, out=folder, steps=1, **options)


class Book:
    """A tracker that remembers what it is told."""

    def __init__(self, fails_in: int = -1) -> None:
        self.runs: dict[str, list[int]] = {}
        self.begun: list[Beginning] = []
        self.endings: list[Ending] = []
        self.closed: list[bool] = []
        self.fails_in = fails_in

    def begin(self, run: Beginning) -> Telling:
        self.begun.append(run)
        known_as = run.known_as or f"run-{len(self.runs)}"
        told = self.runs.setdefault(known_as, [])

        def tell(number: int, numbers: dict[str, float]) -> None:
            if number == self.fails_in:
                raise OSError("no space left")
            assert numbers["asked"] == 4
            told.append(number)

        return Telling(known_as, len(told), tell, self.endings.append, self.closed.append)


@pytest.fixture
def book(monkeypatch):
    found = Book()
    monkeypatch.setattr(tracking, "begin_of", lambda name: found.begin)
    monkeypatch.setattr(tracking, "check_installed", lambda names: None)
    return found


def test_a_tracker_hears_of_every_round_and_of_the_end(clients, tmp_path, book):
    run = train(clients, tmp_path / "run", track="wandb")
    assert book.runs == {"run-0": [1, 2]}
    assert book.closed == [True]
    (ending,) = book.endings
    assert ending.numbers["accuracy"] == run.summary["accuracy"]
    assert ending.texts["verdict"].startswith("Verdict")
    assert ending.pictures["run"].startswith(b"\x89PNG")
    assert {"state.safetensors", "config.toml", "summary.json"} <= {path.name for path in ending.files}
    (began,) = book.begun
    assert (began.settings["rounds"], began.settings["seed"]) == (2, 1)
    assert "track" not in began.settings


def test_a_run_without_a_folder_is_tracked_too(clients, book):
    train(clients, None, track=["mlflow"])
    assert (book.runs, book.endings[0].files) == ({"run-0": [1, 2]}, ())


def test_a_resumed_run_is_the_same_run_at_the_tracker(clients, tmp_path, book):
    train(clients, tmp_path / "run", 2, track="mlflow")
    train(clients, tmp_path / "run", 4, track="mlflow", resume=True)
    assert book.runs == {"run-0": [1, 2, 3, 4]}


def test_rounds_before_the_tracking_are_told_when_it_begins(clients, tmp_path, book):
    train(clients, tmp_path / "run", 2)
    assert not (tmp_path / "run" / tracking.IDS).exists()
    train(clients, tmp_path / "run", 3, track="mlflow", resume=True)
    assert book.runs == {"run-0": [1, 2, 3]}


def test_a_run_that_was_finished_but_not_told_is_told_when_it_is_resumed(clients, tmp_path, book):
    train(clients, tmp_path / "run", 2)
    (tmp_path / "run" / "summary.json").unlink()
    train(clients, tmp_path / "run", 2, track="mlflow", resume=True)
    assert (book.runs, len(book.endings)) == ({"run-0": [1, 2]}, 1)


def test_a_tracker_that_fails_is_warned_of_once_and_the_run_is_the_same(clients, tmp_path, book, caplog):
    book.fails_in = 2
    with caplog.at_level(logging.WARNING, "coterie"):
        tracked = train(clients, tmp_path / "run", 3, track="tensorboard")
    warned = [record.getMessage() for record in caplog.records if "told no more" in record.getMessage()]
    assert warned == ["tensorboard is told no more about this run, which goes on: no space left"]
    assert (book.runs, book.endings, book.closed) == ({"run-0": [1]}, [], [False])
    plain = train(clients, None, 3)
    assert [record["accuracy"] for record in load_rounds(tmp_path / "run")] == [r["accuracy"] for r in plain.history]
    assert tracked.summary["accuracy"] == plain.summary["accuracy"]


def test_ctrl_c_is_no_failure_of_a_tracker(clients, tmp_path, book):
    def stop(record: dict) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(clients, tmp_path / "run", 3, track="mlflow", progress=stop)
    assert (book.runs, book.closed) == ({"run-0": [1]}, [False])
    train(clients, tmp_path / "run", 3, track="mlflow", resume=True)
    assert (book.runs, book.closed) == ({"run-0": [1, 2, 3]}, [False, True])


def test_a_run_that_is_refused_is_told_to_nobody(clients, tmp_path, book):
    with pytest.raises(UsageError):
        train(clients, tmp_path / "run", track="mlflow", until="rmse=1")
    assert (book.begun, list(tmp_path.iterdir())) == ([], [])


def test_references_are_not_tracked(clients, tmp_path, book):
    train(clients, tmp_path / "run", track="mlflow", references=True)
    assert list(book.runs) == ["run-0"]


def test_every_run_of_a_comparison_is_tracked(clients, tmp_path, book):
    ct.compare(["fedavg", "wecfl(2)"], clients, "mlp(4)", rounds=1, seeds=1, local=False, out=tmp_path, track="mlflow")
    assert book.runs == {f"run-{number}": [1] for number in range(2)}


def test_candidates_are_tracked(clients, tmp_path, book):
    ct.tune("fedavg", clients, "mlp(4)", over={"lr": [0.1, 0.2]}, rounds=1, out=tmp_path, track="mlflow")
    assert [begun.settings["lr"] for begun in book.begun] == [0.1, 0.2]


def test_trackers_do_not_change_what_a_run_is(tmp_path):
    check_settings(Settings("wecfl"), Settings("wecfl", track="mlflow,wandb"), tmp_path)


def test_an_unknown_tracker_is_refused():
    with pytest.raises(UnknownName, match="unknown tracker 'tensorbord'; did you mean 'tensorboard'"):
        Settings("wecfl", track="mlflow,tensorbord")


def test_a_tracker_that_is_not_installed_is_refused_before_the_run(clients, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"mlflow is not installed; pip install 'coterie\[mlflow\]'"):
        train(clients, tmp_path / "run", track="mlflow")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_takes_several_trackers(tmp_path, book):
    words = [
        "run",
        "fedavg",
        "--rounds",
        "1",
        "--clients",
        "4",
        "--track",
        "mlflow,wandb",
        "--out",
        str(tmp_path / "r"),
    ]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, len(book.begun)) == (0, 2)


def test_the_time_of_trackers_is_no_time_of_the_run(clients, monkeypatch):
    """On a clock that a tracker moves by 1000 s a round, and every look at it by 0.001, rounds take next to nothing."""
    passed, looks = [], itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: 1000.0 * len(passed) + 0.001 * next(looks))
    run = train(clients, None, 3, progress=passed.append)
    assert max(record["seconds"] for record in run.history) < 100


def test_sizes_of_very_many_clusters_are_not_told():
    assert numbers_of({"clusters": [1] * 65, "clusters_found": 65}) == {"clusters_found": 65.0}


# The real libraries, read back by themselves.


def test_tensorboard_reads_what_was_written(clients, tmp_path):
    pytest.importorskip("tensorboard", reason="needs coterie[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(clients, tmp_path / "run", 2, track="tensorboard")
    run = train(clients, tmp_path / "run", 3, track="tensorboard", resume=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("accuracy")]
    assert scalars == [(r["round"] + 1, pytest.approx(r["accuracy"])) for r in run.history]
    sizes = [[events.Scalars(f"clusters/{k}")[r].value for k in (0, 1)] for r in (1, 2)]
    assert sizes == [r["clusters"] for r in run.history[1:]]
    assert events.Scalars("last/accuracy")[-1].value == pytest.approx(run.summary["accuracy"])
    assert {"settings/text_summary", "verdict/text_summary", "models/text_summary"} <= set(events.Tags()["tensors"])
    assert events.Images("run")[0].width == 1125
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_a_folder_that_cannot_be_written_does_not_lose_the_run(clients, tmp_path, caplog):
    pytest.importorskip("tensorboard", reason="needs coterie[tensorboard]")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    with caplog.at_level(logging.WARNING, "coterie"):
        train(clients, tmp_path / "run", track="tensorboard")
    assert sum("told no more" in record.getMessage() for record in caplog.records) == 1
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.fixture
def mlflow_store(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="needs coterie[mlflow]")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_written(clients, tmp_path, mlflow_store):
    from mlflow import MlflowClient

    train(clients, tmp_path / "run", 2, track="mlflow")
    run = train(clients, tmp_path / "run", 3, track="mlflow", resume=True)
    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("coterie").experiment_id])
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert [(each.step, each.value) for each in history] == [(r["round"] + 1, r["accuracy"]) for r in run.history]
    assert found.info.status == "FINISHED"
    assert (found.data.params["algorithm"], found.data.params["steps"]) == ("wecfl(clusters=2)", "1")
    assert found.data.metrics["last/accuracy"] == run.summary["accuracy"]
    kept = {each.path for each in client.list_artifacts(found.info.run_id, "run")}
    assert {"run/state.safetensors", "run/summary.json"} <= kept
    tops = {each.path for each in client.list_artifacts(found.info.run_id)}
    assert tops == {"figures", "run", "verdict.txt"}


@pytest.mark.filterwarnings("ignore")
def test_an_mlflow_that_has_forgotten_the_run_gets_a_new_one(clients, tmp_path, mlflow_store):
    from mlflow import MlflowClient

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / tracking.IDS).write_text('{"mlflow": "0123456789abcdef0123456789abcdef"}')
    train(clients, tmp_path / "run", 1, track="mlflow")
    assert MlflowClient().get_run(tracking.load_ids(tmp_path / "run")["mlflow"]).info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_what_was_written_offline(clients, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs coterie[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(clients, tmp_path / "run", 2, track="wandb")
    run = train(clients, tmp_path / "run", 3, track="wandb", resume=True)
    # By their folders' names, which are dates: wandb may write to the first file last.
    first, second = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert first.name == second.name == f"run-{tracking.load_ids(tmp_path / 'run')['wandb']}.wandb"
    records = read_wandb(second)
    told = [row for row in histories(records) if "accuracy" in row]
    assert [(row["_step"], row["accuracy"]) for row in told] == [(r["round"] + 1, r["accuracy"]) for r in run.history]
    settings = {item.key: item.value_json for record in records for item in record.run.config.update}
    assert settings["algorithm"] == '"wecfl(clusters=2)"'
    files = {entry.path for record in records for entry in record.request.log_artifact.artifact.manifest.contents}
    files |= {entry.path for record in records for entry in record.artifact.manifest.contents}
    assert "state.safetensors" in files


def read_wandb(path: Path) -> list:
    """Return the records of an offline file: wandb's messages in a log of blocks of 32 KB, after a head of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    content, at, part, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        part, at = part + content[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            found.append(wandb_internal_pb2.Record.FromString(part))
            part = b""
    return found


def histories(records: list) -> list[dict]:
    return [
        {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


def test_the_ending_of_a_run_of_an_earlier_version_has_no_verdict():
    history = [{"round": 0, "accuracy": 0.5, "worst": 0.4, "clusters": [2]}]
    assert ending_of({"algorithm": "fedavg", "data": "digits"}, history, None).texts == {}
