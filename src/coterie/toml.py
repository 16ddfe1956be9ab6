"""TOML files, read with a limit: a file that is too large or too deep is as wrong as one that is no TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from coterie.limits import TOML


def read_toml(path: Path) -> dict[str, Any]:
    """What a file says; whatever is wrong with its content is a ``ValueError`` of one line."""
    with path.open("rb") as file:
        content = file.read(TOML + 1)
    if len(content) > TOML:
        raise ValueError(f"it has more than {TOML >> 20} MB")
    return parse_toml(content)


def parse_toml(content: bytes) -> dict[str, Any]:
    """What the content of a file says; see ``read_toml``."""
    try:
        return tomllib.loads(content.decode())
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
