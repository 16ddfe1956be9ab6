"""The fuzzer: it notices every kind of planted fault, makes the same cases again, and its first cases are clean."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import pytest

from coterie.protocol.message import Field
from fuzz import __main__ as program
from fuzz import folders, lanes, messages, words
from fuzz.judge import DONE, REFUSED, Case, Verdict, command
from fuzz.lanes import Limits, Name

USUAL = Limits()
ROOT = Path(__file__).resolve().parents[1]


def says(code: int, out: str = "", err: str = "", file: str | None = None):
    """Work that writes these words, perhaps a file, and ends with a code."""

    def work() -> int:
        os.write(1, out.encode())
        os.write(2, err.encode())
        if file is not None:
            Path(file).write_text("left")
        return code

    return work


def judge(work, limits: Limits = USUAL, **about) -> Verdict:
    """The verdict on planted work, in a process of its own."""
    makers = {"planted": lambda rng, prepared: Case("planted", work, **about)}
    ((name, verdict),) = lanes.run([Name(1, "planted", 0)], makers, Path("nowhere"), limits)
    assert name.again == "python -m fuzz --seed 1 --only planted:0"
    assert verdict.told == "planted"
    return verdict


def fail() -> int:
    raise KeyError("planted")


def vanish() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def eat() -> int:
    return len(bytearray(1 << 31)) and 0


PLANTED = {
    "an exception": (fail, "raised:"),
    "a traceback": (says(0, err="Traceback (most recent call last):\n"), "a traceback"),
    "an internal error": (says(1, err="internal error: KeyError\n"), "an internal error"),
    "two lines": (says(2, err="error: one\nand two\n"), "2 lines on stderr"),
    "a line that is broken by a separator": (says(2, err="error: one\u2028two\n"), "2 lines on stderr"),
    "no line": (says(2), "0 lines on stderr"),
    "another line": (says(2, err="oops\n"), "does not begin with error:"),
    "a very long line": (says(2, err=f"error: {'x' * 9000}\n"), "a refusal of 9008 letters"),
    "output at a refusal": (says(2, out="some\n", err="error: no\n"), "output on stdout"),
    "an escape": (says(2, err="error: \x1b[31m\n"), "a control character"),
    "a warning": (says(0, err="x.py:3: UserWarning: odd\n"), "a warning"),
    "too much memory, as it is told": (
        says(1, err="error: there is not enough memory; take fewer\n"),
        "more memory than",
    ),
    "an exit code": (says(3, err="error: no\n"), "exit code 3"),
    "a file": (says(2, err="error: no\n", file="left"), "a refusal changed left"),
    "a crash": (vanish, "the process ended by -9"),
    "too much memory": (eat, "MemoryError"),
}


@pytest.mark.parametrize(("work", "fault"), PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_is_noticed(work, fault):
    found = judge(work, Limits(memory=1 << 29))
    assert fault in "\n".join(found.faults)


def test_a_hang_is_noticed_and_ended():
    began = time.monotonic()
    found = judge(lambda: time.sleep(60) or 0, Limits(seconds=0.5))
    assert "no end after 0.5 s" in found.faults[0]
    assert time.monotonic() - began < 10


SOUND = {
    "done": (says(0, out="a table\n", err="wecfl seed 1 round 1/2 accuracy 0.1 0.3 s\n"), DONE, {}),
    "refused": (says(2, err="error: rounds is 0; it must be at least 1\n"), REFUSED, {}),
    "refused in lines on stdout": (says(2, out="problem: one\nproblem: two\n"), REFUSED, {"prints": True}),
    "refused with a log of it": (says(2, err="error: no\n", file="audit"), REFUSED, {"keeps": False}),
}


@pytest.mark.parametrize(("work", "outcome", "about"), SOUND.values(), ids=SOUND)
def test_what_is_sound_is_no_fault(work, outcome, about):
    found = judge(work, **about)
    assert (found.outcome, found.faults) == (outcome, [])


def test_a_fault_inside_of_the_real_command_is_noticed(monkeypatch):
    def run_settings(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("coterie.experiments.run.run_settings", run_settings)
    found = judge(command(["run", "fedavg", "--quiet"]))
    assert found.faults[0].startswith("an internal error")


def test_a_further_check_is_made_where_nothing_else_is_wrong():
    found = judge(says(0), after=lambda code: [f"ended with {code}"])
    assert found.faults[0].startswith("ended with 0")


def test_a_case_is_made_from_seed_kind_and_number_alone(tmp_path, monkeypatch):
    def told(number: int, place: str) -> str:
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        return words.make(Random(f"1:words:{number}"), tmp_path).told

    assert told(3, "a") == told(3, "b") != told(4, "c")


def test_every_option_of_every_command_is_drawn():
    rng = Random(1)
    for path, known in words._commands().items():
        wanted = {flag for each in known.params for flag in (*each.opts, *each.secondary_opts) if flag.startswith("--")}
        drawn = {word for _ in range(700) for word in words._line(rng, " ".join(path), known)}
        assert wanted <= drawn, path


def test_kinds_come_in_turn_and_in_their_shares():
    names = program.names(1, 2000)
    assert len(names) == len(set(names)) == 2000
    assert {name.kind for name in names[:20]} == set(program.SHARES)


def test_a_fault_is_shown_with_the_command_that_repeats_it(tmp_path, monkeypatch, capsys):
    found = [
        (Name(7, "words", 137), Verdict("coterie run \x1b", DONE, ["a traceback"])),
        (Name(7, "files", 1), Verdict("x", REFUSED)),
    ]
    monkeypatch.setattr(program, "verdicts", lambda asked, limits: iter(found))
    monkeypatch.setattr(sys, "argv", ["fuzz", "--seed", "7", "--out", str(tmp_path / "out")])
    assert program.main() == 1
    told = capsys.readouterr().err
    assert "python -m fuzz --seed 7 --only words:137" in told
    assert "coterie run \\x1b" in told
    (line,) = (tmp_path / "out" / "faults.jsonl").read_text().splitlines()
    assert json.loads(line)["case"] == "words:137"


def test_other_numbers_of_a_run_that_was_gone_on_with_are_noticed(tmp_path, monkeypatch):
    folders.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, wrong in (("finished", []), ("other", ["summary", "records", "clients", "models"])):
        shutil.rmtree(folders.PLACE, ignore_errors=True)
        shutil.copytree(tmp_path / name, folders.PLACE)
        faults = folders._same_run(tmp_path)(0)
        assert [fault.split()[1] for fault in faults if "labels" not in fault] == wrong


@pytest.mark.parametrize("number", [np.nan, 2.0, -0.1])
def test_a_number_out_of_its_range_that_got_through_is_noticed(number):
    wanted = {"losses": Field((1, 2), "float64", 0.0, 1.0)}
    messages._legal({"losses": np.array([[0.5, 1.0]])}, wanted, False)
    with pytest.raises(messages._Wrong, match="losses"):
        messages._legal({"losses": np.array([[0.5, number]])}, wanted, False)


def test_the_first_cases_are_clean(tmp_path):
    """In a process of its own, since cases are forked and this one may have threads."""
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--cases", "40", "--lanes", "1", "--out", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "40 cases" in done.stderr
    assert (tmp_path / "faults.jsonl").read_text() == ""
