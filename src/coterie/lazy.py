"""Packages that import their public names when these are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def importer(package: str, homes: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package; ``homes`` lists the public names of each module, or ``name=other``.

    ``name=other`` is a public name that the module calls otherwise. A name that was found stays an attribute of the
    package, so that it is looked up once. The package's submodules are found too; none may have a public name, since
    an import of the submodule would hide what is meant.

    >>> importer("coterie", {"coterie.protocol.task": ["Fit"]})("Fit")
    <class 'coterie.protocol.task.Fit'>
    """
    parts = {
        name.partition("=")[0]: (module, name.rpartition("=")[2]) for module, names in homes.items() for name in names
    }

    def find(name: str) -> Any:
        if name in parts:
            module, inner = parts[name]
            value = getattr(import_module(module), inner)
            setattr(sys.modules[package], name, value)
            return value
        if name.startswith("_") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return find
