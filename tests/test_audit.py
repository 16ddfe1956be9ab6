"""The audit log of a site: what is in it, that it only grows, and that nothing leaves without it."""

from __future__ import annotations

import io
import json
import os

import pytest
from rich.console import Console

from coterie.deploy.audit import Audit, audit_table, read_audit, task_summary
from coterie.errors import FederationError
from coterie.protocol.report import Report, Sample
from coterie.protocol.task import Contrast, Fit, Loss, Task


def test_lines_are_added_and_read_back(tmp_path):
    log = Audit(tmp_path / "audit.jsonl")
    log.write({"run": "heart", "round": 1})
    Audit(tmp_path / "audit.jsonl").write({"run": "line\nbreak \u2028 ü", "round": 2})
    assert [line["round"] for line in read_audit(log.path)] == [1, 2]
    assert read_audit(log.path)[1]["run"] == "line\nbreak \u2028 ü"
    assert log.path.stat().st_mode & 0o777 == 0o640 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_log_that_is_not_there_is_empty(tmp_path):
    assert read_audit(tmp_path / "none.jsonl") == []


def test_a_line_that_was_torn_spoils_no_other(tmp_path):
    log = Audit(tmp_path / "audit.jsonl")
    log.write({"round": 1})
    with log.path.open("a") as file:
        file.write('{"round": 2, "ru')
    log.write({"round": 3})
    assert [line.get("round") for line in read_audit(log.path)] == [1, None, 3]
    assert read_audit(log.path)[1]["outcome"] == "damaged"


def test_a_log_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(FederationError, match=r"audit log cannot be written .Is a directory"):
        Audit(tmp_path).write({})
    with pytest.raises(FederationError, match="No such file"):
        Audit(tmp_path / "gone" / "audit.jsonl").write({})


def test_a_full_disk_is_an_error():
    with pytest.raises(FederationError, match="No space left"):
        Audit("/dev/full").write({"round": 1})


def test_a_line_that_is_not_on_disk_is_an_error(tmp_path, monkeypatch):
    """A line that only the cache holds is lost when the power fails, and the reply would have left."""

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FederationError, match="Input/output error"):
        Audit(tmp_path / "audit.jsonl").write({"round": 1})


def test_a_task_is_summarised_in_a_few_words():
    fit = Fit(epochs=2, batch=8, part="head", terms=(Contrast(1, 0.5),), half=1)
    task = Task((Loss(),), (fit,), Report(None, losses=True, evaluate_on="test", sample=Sample(0, 16)))
    assert task_summary(task) == (
        "choose by Loss; train head: 2 epochs of 8, the model's lr, Contrast, half 1; "
        "report losses on examples 0 to 16, metrics on test"
    )
    assert task_summary(Task(report=Report(None))) == "report nothing"
    assert task_summary(Task(report=Report(None, losses=True, bounded="clipped"))) == "report clipped losses"
    summary = task_summary(Task(report=Report(None, losses=True, bounded="clipped", differences=True)))
    assert summary == "report clipped differences of losses"


def test_people_see_a_table_and_markup_of_others_is_only_text(tmp_path):
    line = {"time": "2026-01-02T03:04:05+00:00", "run": "[red]x[/red]", "outcome": "refused", "reason": "too big"}
    (tmp_path / "a.jsonl").write_text(json.dumps({**line, "left": {"params": [1, 12]}, "seconds": 0.5}) + "\n")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(audit_table(read_audit(tmp_path / "a.jsonl")))
    text = console.export_text()
    assert "refused: too big" in text
    assert "params 1x12" in text
    assert "[red]x[/red]" in text
