"""What Ctrl-C says is true: what is saved, where, and what goes on from there."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from coterie.cli.main import app

SMALL = ["--clients", "4", "--partition", "iid", "--model", "mlp(4)", "--steps", "1", "--batch", "8", "--rounds", "3"]


def stopped(monkeypatch, place, words, after=0):
    """Return what a command says at Ctrl-C, which comes in the call of a function after this number of calls."""
    module, _, name = place.rpartition(".")
    original, calls = getattr(__import__(module, fromlist=[name]), name), []

    def interrupted(*given, **more):
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(given)
        return original(*given, **more)

    monkeypatch.setattr(place, interrupted)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130, done.output
    return " ".join(done.stderr.split())


EVALUATE = "coterie.experiments.session.evaluate"

KEEPING = {
    "run": (["run", "fedavg"], "the same command with --resume --out {out}"),
    "compare": (["compare", "fedavg", "--seeds", "1"], "the same command with --out {out}"),
    "tune": (["tune", "fedavg", "--over", "lr=0.1"], "the same command with --out {out}"),
}


@pytest.mark.parametrize(("words", "command"), KEEPING.values(), ids=KEEPING)
def test_a_command_that_keeps_rounds_names_their_folder(words, command, monkeypatch, tmp_path):
    out = tmp_path / "out"
    said = stopped(monkeypatch, EVALUATE, [*words, *SMALL, "--quiet", "--out", str(out)], after=2)
    assert said == f"stopped; finished rounds are saved in {out}: {command.format(out=out)} goes on from there"
    monkeypatch.undo()
    again = [*words, *SMALL, "--quiet", "--out", str(out), *(["--resume"] if words[0] == "run" else [])]
    assert CliRunner().invoke(app, again).exit_code == 0


@pytest.mark.parametrize("words", [each for each, _ in KEEPING.values()], ids=KEEPING)
def test_before_a_round_is_saved_the_same_command_begins_anew(words, monkeypatch, tmp_path):
    again = [*words, *SMALL, "--quiet", "--out", str(tmp_path / "out")]
    said = stopped(monkeypatch, EVALUATE, again)
    assert said == "stopped before a round was saved; give the same command again to begin anew"
    monkeypatch.undo()
    assert CliRunner().invoke(app, again).exit_code == 0


KEEPING_NOTHING = {
    "predict": ("coterie.api.predictions.predict_file", ["predict", "run", "--data", "new.csv"]),
    "export": ("coterie.experiments.served_run.load_served_run", ["export", "run"]),
    "report": ("coterie.reporting.report.collecting.collect", ["report", "run"]),
    "data check": ("coterie.data.check_files", ["data", "check", "."]),
}


@pytest.mark.parametrize(("place", "words"), KEEPING_NOTHING.values(), ids=KEEPING_NOTHING)
def test_a_command_that_keeps_nothing_offers_nothing_to_resume(place, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.experiments.served_run.load_served_run", lambda run: run)
    assert stopped(monkeypatch, place, words) == "stopped; there is nothing to resume"


@pytest.mark.parametrize("place", ["coterie.watching.run_watch.watch_folder", "coterie.watching.serving.serve"])
def test_a_live_page_just_ends_also_while_it_begins(place, monkeypatch, tmp_path):
    said = stopped(monkeypatch, place, ["watch", str(tmp_path)])
    assert said == "the page has ended; what it showed goes on"
