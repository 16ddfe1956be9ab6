"""How the code reads: what a run enters, what imports what, how long functions are. `python benchmarks/house.py`.

Prints the files and functions that `coterie run wecfl` enters (imports and class bodies apart), the number of
modules and of those with a single importer, and the lengths and numbers of arguments of all functions.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from coterie.cli.main import main as command

ROOT = Path(__file__).resolve().parents[1] / "src"
IS_FUNCTION = 1
"""The flag of a code object that is a function's, not a class body's (``inspect.CO_OPTIMIZED``)."""

MANY = 5
"""Functions with more arguments than this are counted."""


def walk(folder: Path, *words: str) -> set[CodeType]:
    """Return the functions of coterie that a command enters, in all threads."""
    entered: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and code.co_flags & IS_FUNCTION:
            entered.add(code)

    sys.argv = ["coterie", *words, "--rounds", "1", "--out", str(folder / "first")]
    with suppress(SystemExit):  # so that nothing is imported in the walk itself
        command()
    sys.argv = ["coterie", *words, "--out", str(folder / "second")]
    threading.setprofile(note)
    sys.setprofile(note)
    with suppress(SystemExit):
        command()
    sys.setprofile(None)
    return {code for code in entered if not code.co_name.startswith("<")}


def modules() -> dict[str, ast.Module]:
    """Return every module of the package, parsed, by its dotted name."""
    paths = sorted((ROOT / "coterie").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return {name: ast.parse(path.read_text()) for name, path in zip(names, paths, strict=True)}


def importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return who imports each module."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in trees:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found[inner if inner in trees else node.module].add(name)
    return found


def functions(trees: dict[str, ast.Module]) -> Iterator[tuple[int, int]]:
    """Yield the length without docstring, and the number of arguments without self, of every function."""
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                text = ast.get_docstring(node, clean=False)
                length = (node.end_lineno or node.lineno) - node.lineno + 1 - (text.count("\n") + 1 if text else 0)
                names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                yield length, len([name for name in names if name not in ("self", "cls")])


def main() -> None:
    trees = modules()
    single = sum(len(each) == 1 for each in importers(trees).values())
    lengths, arguments = zip(*functions(trees), strict=True)
    ordered = sorted(lengths)
    with tempfile.TemporaryDirectory() as folder:
        entered = walk(Path(folder), "run", "wecfl", "--quiet")
    files = Counter(Path(code.co_filename).relative_to(ROOT / "coterie") for code in entered)
    print(f"\n{len(entered)} functions in {len(files)} files are entered by: coterie run wecfl")
    for path, count in sorted(files.items()):
        print(f"  {count:4} {path}")
    print(f"{len(trees)} modules, {single} with a single importer")
    print(
        f"{len(ordered)} functions: median {ordered[len(ordered) // 2]} lines, "
        f"90th percentile {ordered[int(0.9 * len(ordered))]}, without docstrings; "
        f"{sum(count > MANY for count in arguments)} with more than {MANY} arguments"
    )


if __name__ == "__main__":
    main()
