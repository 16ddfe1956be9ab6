"""A virtual environment for each foreign contestant, made at first use and again when its requirements change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"


class NotInstalled(Exception):
    """An environment could not be made; the message is the reason that pip gave."""


def python_of(name: str, root: Path) -> str:
    """Return the interpreter of an environment with the pinned packages of ``requirements/NAME.txt``."""
    wanted, folder = REQUIREMENTS / f"{name}.txt", root / name
    stamp, python = folder / ".installed", folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print(f"installing {name} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        _install(python, wanted)
        stamp.write_text(wanted.read_text())
    return str(python)


def _install(python: Path, wanted: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(errors[-1].removeprefix("ERROR: ") if errors else "pip failed")
