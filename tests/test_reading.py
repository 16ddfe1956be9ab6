"""The options that say how a user's files are read: declared once, in ``Reading``, and found everywhere from there."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import field, fields, make_dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

import coterie as ct
from coterie.cli.main import app
from coterie.data import Reading, check_own, from_frame, load_client, load_own, load_pooled
from coterie.deploy.config import SiteConfig
from coterie.errors import DataError, UnknownName
from coterie.experiments.settings import Settings

OPTIONS = {option.name: option for option in fields(Reading)}
NOT_OF_A_SITE = {"client", "group"}
"""A site is one client, so no column names it."""

NOT_OF_A_CHECK = {"validation"}
"""Whatever part is for validation, the problems are the same."""

HEAVY = ("polars", "torch", "scipy", "sklearn", "matplotlib", "PIL")


@pytest.fixture
def folder(tmp_path):
    for i, name in enumerate(("bern", "chur")):
        rng = np.random.default_rng(i)
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(20, 3)), y=np.arange(20) % 2)
    return tmp_path


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_a_default_and_a_help_text(name):
    assert OPTIONS[name].kw_only
    assert OPTIONS[name].metadata["help"]
    assert getattr(Reading(), name) == OPTIONS[name].default


@pytest.mark.parametrize("load", [load_own, load_pooled, load_client, check_own, from_frame])
def test_every_option_is_an_argument_in_python(load):
    shown = inspect.signature(load).parameters
    assert {name: shown[name].default for name in OPTIONS} == {f.name: f.default for f in OPTIONS.values()}
    assert "options" not in shown


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_taken_with_its_default(folder, name):
    assert len(load_own(folder, **{name: OPTIONS[name].default})) == 2
    assert len(load_own(folder, **{name: None})) == 2


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_a_setting_a_flag_and_a_key_of_a_site(name):
    assert name in {each.name for each in fields(Settings)}
    commands = get_command(app).commands
    assert name in {flag.name for flag in commands["run"].params}
    assert name in NOT_OF_A_CHECK or name in {flag.name for flag in commands["data"].commands["check"].params}
    assert name in NOT_OF_A_SITE or name in {each.name for each in fields(SiteConfig)}


def test_a_new_option_needs_no_more_than_its_field(folder, monkeypatch):
    option = field(default="utf-8", metadata={"help": "own tables: how letters are stored", "choices": ()})
    longer = make_dataclass("Longer", [("encoding", str, option)], bases=(Reading,), frozen=True, kw_only=True)
    monkeypatch.setattr("coterie.data.tables.api.Reading", longer)
    assert load_own(folder, encoding="latin-1").words == {"data": str(folder), "encoding": "latin-1"}
    assert load_own(folder).words == {"data": str(folder)}
    with pytest.raises(UnknownName, match="unknown option 'encodng'; did you mean 'encoding'"):
        check_own(folder, encodng="latin-1")


@pytest.mark.parametrize("load", [load_own, load_pooled, check_own])
def test_an_unknown_option_is_one_line_with_the_nearest_name(folder, load):
    with pytest.raises(UnknownName, match="unknown option 'lable'; did you mean 'label'") as error:
        load(folder, lable="outcome")
    assert "\n" not in str(error.value)


def test_pooled_data_refuse_the_options_of_clients(folder):
    for options in ({"client": "town"}, {"group": "region"}, {"validation": 0.1}):
        with pytest.raises(DataError, match="is for data that come with clients; leave it or the partition out"):
            load_pooled(folder / "bern.npz", **options)


def test_columns_to_ignore_are_a_list_or_one_text():
    assert Reading(ignore="id, date").ignore == Reading(ignore=["id", "date"]).ignore == ("id", "date")
    assert Reading(ignore="").ignore == ()
    assert Reading(ignore="id,date").words() == {"ignore": "id,date"}


@pytest.mark.parametrize("module", ["coterie.data", "coterie.data.tables.reading", "coterie.data.tables.files"])
def test_the_options_are_cheap_to_import(module):
    # The package itself imports everything, so it is left out here.
    code = f"""
import sys, types
package = types.ModuleType("coterie")
package.__path__ = [{str(Path(ct.__file__).parent)!r}]
sys.modules["coterie"] = package
import {module}
print(*(name for name in {HEAVY} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
