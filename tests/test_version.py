"""One version, in pyproject.toml, that the command line tells."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie.cli.main import app

ROOT = Path(__file__).parent.parent
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_the_installed_version_is_that_of_pyproject():
    assert metadata.version("coterie") == VERSION, "run make setup again"


@pytest.mark.parametrize("words", [["--version"], ["--version", "run", "no such method"]])
def test_the_command_tells_its_version_and_does_nothing_else(words):
    told = CliRunner().invoke(app, words)
    assert (told.exit_code, told.output) == (0, f"coterie {VERSION}\n")


def test_no_other_file_of_the_library_states_the_version():
    stating = [path.name for path in (ROOT / "src").rglob("*.py") if VERSION in path.read_text()]
    assert stating == []
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")


def test_a_version_that_cannot_be_written_is_one_line_and_no_traceback(monkeypatch):
    def full(text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coterie.cli.main.say", full)
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, type(told.exception)) == (1, SystemExit)
    assert told.output.count("\n") == 1
