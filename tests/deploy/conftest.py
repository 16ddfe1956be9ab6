"""A deployment to look at, one to change, and what the tests need from the system."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from flower_commands import FlowerCommands

from coterie.deploy import server_folder
from coterie.deploy.deployment import write_deployment

PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


@pytest.fixture(scope="session", autouse=True)
def _flower_commands() -> Iterator[None]:
    """Servers of this process give commands to Flower without starting a program for each."""
    with pytest.MonkeyPatch.context() as patched:
        commands = SimpleNamespace(run=FlowerCommands().run, SubprocessError=subprocess.SubprocessError)
        patched.setattr(server_folder, "subprocess", commands)
        yield


@pytest.fixture(scope="session")
def nginx() -> str:
    """Return the path of nginx, which tests of the door need and never install."""
    found = shutil.which("nginx", path=PLACES)
    if found is None:
        pytest.skip("nginx is missing; apt-get install nginx-light")
    return found


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A deployment that nobody changes."""
    folder = tmp_path_factory.mktemp("d") / "f"
    write_deployment(folder, ("aarau", "bern", "St.Gallen_2"), "fed.example.org")
    return folder


@pytest.fixture
def own(made, tmp_path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(made, tmp_path / "f"))


@pytest.fixture(scope="session")
def change() -> Callable[..., None]:
    """Set keys of a TOML file to texts."""

    def set_keys(path: Path, **values: str) -> None:
        lines = [line for line in path.read_text().splitlines() if line.partition(" =")[0] not in values]
        path.write_text("\n".join([*lines, *(f"{key} = {text}" for key, text in values.items())]))

    return set_keys
