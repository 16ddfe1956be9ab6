"""Functions of a user's own packages, named ``package.module:function`` wherever a name of a catalogue may stand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.errors import UsageError
from coterie.terminal import line


def is_outside(name: str) -> bool:
    """Return whether a name is of a user's own function.

    >>> is_outside("package.module:function"), is_outside("wecfl")
    (True, False)
    """
    return ":" in name


def find_outside(kind: str, name: str, error: type[UsageError] = UsageError) -> Callable[..., Any]:
    """Import the function that ``package.module:function`` names; ``kind`` says in errors what it is used as.

    A module that is not installed is also looked for in the current folder.

    >>> find_outside("model", "math:sqrt")(9)
    3.0
    """
    module_name, _, attribute = name.partition(":")
    if not is_installed(module_name) and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # behind all others: a file here hides no installed package
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as problem:  # a user's code may fail in any way
        why = f"{reason(problem)}; is it on PYTHONPATH?"
        raise error(f"cannot import {module_name!r} of {kind} {name!r}: {why}") from None
    function = getattr(module, attribute, None)
    if not callable(function):
        raise error(f"{module_name!r} has no function {attribute!r} for {kind} {name!r}; write module:function")
    found: Callable[..., Any] = function
    return found


def is_installed(module: str) -> bool:
    """Return whether the package of a module can be imported."""
    top = module.partition(".")[0]
    try:
        return top in sys.modules or find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def reason(error: BaseException) -> str:
    """Return an error's type and the first line of its message, made safe for a terminal.

    >>> reason(ValueError("no\\nmore"))
    'ValueError: no'
    """
    return line(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", 500)
