"""How the library and the command line start: what they import, how long that takes, and that all names are found."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import coterie as ct
import coterie.data

HEAVY = (
    "torch",
    "polars",
    "scipy",
    "scipy.sparse",
    "scipy.optimize",
    "scipy.stats",
    "sklearn",
    "matplotlib",
    "ray",
    "flwr",
)
PRINT = f"import sys; print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
CALL = "import sys; from coterie.cli.main import main\ntry: main()\nexcept SystemExit as end: assert not end.code\n"


def heavy_modules(code: str, *words: str) -> list[str]:
    """Return the modules that take long to import and that a fresh interpreter has imported after the code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{PRINT}", *words], capture_output=True, text=True, check=True
    )
    return done.stderr.split()


ONE_AFTER_THE_OTHER = f"""
import json, sys
def ask(words):
    from coterie.cli.main import main
    sys.argv = ["coterie", *words.split()]
    try: main()
    except SystemExit as end: assert not end.code
loaded = {{}}
for statement in json.loads(sys.argv[1]):
    exec(statement)
    loaded[statement] = [name for name in {HEAVY} if name in sys.modules]
print(json.dumps(loaded), file=sys.stderr)
"""


def heavy_after_each(statements: Sequence[str]) -> dict[str, list[str]]:
    """Return the modules that take long to import and that one fresh interpreter has imported after each statement."""
    command = [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(statements)]
    loaded: dict[str, list[str]] = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stderr
    )
    return loaded


IMPORTS = (
    "import coterie",
    "import coterie.data",
    "from coterie.data import Reading",
    "import coterie.cli.main",
    "import coterie.deploy.site_node",
)
QUESTIONS = (
    "--help",
    "--version",
    "run --help",
    "compare --help",
    "tune --help",
    "assign --help",
    "list --help",
    "list papers",
    "data --help",
    "data show --help",
    "watch --help",
    "report --help",
    "reproduce --help",
    "federate --help",
    "federate watch --help",
    "federate client --help",
    "federate run --help",
)


@pytest.mark.parametrize(
    "statements", [IMPORTS, [f"ask({words!r})" for words in QUESTIONS]], ids=["imports", "questions"]
)
def test_imports_and_questions_load_nothing_heavy(statements):
    assert heavy_after_each(statements) == {each: [] for each in statements}


def test_a_list_of_everything_draws_no_picture_and_clusters_nothing():
    assert not {"matplotlib", "ray", "flwr", "sklearn"} & set(heavy_modules(CALL, "list"))


def test_a_server_loads_what_clusters_only_when_it_clusters():
    """The package scipy itself is small, and loads its parts when they are used."""
    assert heavy_modules("import coterie.deploy.server_run") == ["torch", "scipy"]


def test_nor_does_a_run_that_nobody_looks_at():
    assert not {"matplotlib", "ray", "flwr"} & set(heavy_modules("import coterie as ct; ct.run, ct.compare"))


def test_an_agent_loads_torch_and_neither_flower_nor_what_only_a_server_needs():
    assert heavy_modules("import coterie.deploy.site_programs") == ["torch"]


def test_help_is_there_at_once():
    """The limit is 0.5 s on a machine that has nothing else to do; the best of three leaves the others' work out."""

    def seconds() -> float:
        child = subprocess.Popen([sys.executable, "-m", "coterie", "--help"], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        return used.ru_utime + used.ru_stime

    assert min(seconds() for _ in range(3)) < 1.0


@pytest.mark.parametrize("package", [ct, coterie.data])
def test_every_public_name_is_found_and_listed(package):
    assert [name for name in package.__all__ if getattr(package, name) is None] == []
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("package", [ct, coterie.data])
def test_a_name_is_the_one_that_type_checkers_see(package):
    """Each import of the block that only type checkers read gives the same object under the same name."""
    tree = ast.parse(Path(package.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {
        name.asname or name.name: getattr(__import__(node.module, fromlist=["_"]), name.name)
        for node in block.body
        for name in node.names
    }
    assert seen == {name: getattr(package, name) for name in package.__all__}


@pytest.mark.parametrize("package", [ct, coterie.data])
def test_no_submodule_hides_a_public_name(package):
    """An import of a submodule would set the attribute to the module."""
    folder = Path(package.__file__).parent
    assert [name for name in package.__all__ if (folder / name).exists() or (folder / f"{name}.py").exists()] == []


def test_a_name_that_there_is_not_is_an_error_as_in_any_module():
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'wecf'"):
        _ = ct.wecf
    assert ct.errors.UsageError is ct.algorithms.registry.UsageError, "submodules are found without an import"
