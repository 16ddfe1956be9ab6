"""Which small faults would the tests notice? `make mutants`, or `python benchmarks/mutation.py --help`.

A mutant is the library with one small fault: a comparison, a sum, a constant turned round, a keyword or a statement
left out. A seeded sample of them, module by module, is given to the tests that enter its function, the quickest first.
One that no test notices has survived: it means the same as the code, or a test is missing. The tree is never changed:
mutants live in a copy. Results are a line of JSON each; what the file already holds is not run again. A mutant is drawn
by what it says, not by where it stands, so that runs on two versions of the code can be compared.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "server/**/*.py",
    "engine/terms.py",
    "experiments/scores.py",
    "experiments/records.py",
    "experiments/summary.py",
)
ABOUT = re.compile(r"\bcoterie\.(server|experiments|engine|algorithms)\b")
SLOW = ("deploy", "test_federate", "test_ray", "test_site", "test_runtimes", "test_docs", "slow")
"""A mutant may meet the tests whose files speak of these packages, but for the slow ones."""

SOME = ("fedopt", "ifca", "wecfl", "joint", "lcfl", "ocfl-kmeans", "sattler(minimum=0)", "wecfl+cam", "ifca+con-para")
HELD = (
    "the_absent_keep_their_clusters",
    "a_cluster_without_answers_keeps_its_model",
    "a_resumed_run_equals_an_unbroken_one",
)
CONTRACT = "contract/test_catalogue.py"
"""Of this file it is what HELD says of SOME."""

HEAVY = ("torch", "scipy.stats", "scipy.optimize", "sklearn.cluster", "sklearn.metrics", "polars", "matplotlib.pyplot")
"""Imported once, before the mutants are started from this process."""

OTHER: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
PAIRS = (("min", "max"), ("argmin", "argmax"), ("any", "all"), ("minimum", "maximum"), ("zeros", "ones"))
NAMES = {name: other for pair in PAIRS for name, other in (pair, pair[::-1])}


@dataclass(frozen=True)
class Mutant:
    """One fault: what stood in a line of a module, and what stands there now."""

    module: str
    function: str
    line: int
    before: str
    after: str
    span: tuple[int, int]
    id: str = ""


def mutants_of(module: str) -> Iterator[Mutant]:
    """All mutants of a module, each with an id made of what it says and how often that was said before."""
    source = (ROOT / "src/coterie" / module).read_bytes()
    lines = source.splitlines(keepends=True)
    starts = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]
    said: Counter[str] = Counter()
    for where, node, after in _faults(ast.parse(source), "", module_level=True):
        begin, end = (starts[at - 1] + column for at, column in _span(node))
        before = source[begin:end].decode()
        text = f"{module} {where} {before} -> {after}"
        said[text] += 1
        name = hashlib.sha256(f"{text} {said[text]}".encode()).hexdigest()[:12]
        yield Mutant(module, where, node.lineno, before, after, (begin, end), name)


def _span(node: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _faults(node: ast.AST, where: str, module_level: bool = False) -> Iterator[tuple[str, Any, str]]:
    """The function, the node and its other text, for every fault below a node; annotations and messages have none."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or name in ("annotation", "returns", "decorator_list"):
                continue
            if isinstance(child, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
                continue
            inside = f"{where}.{child.name}".strip(".") if isinstance(child, ast.FunctionDef | ast.ClassDef) else where
            for after in _others(child, module_level):
                yield inside, child, after
            yield from _faults(child, inside, module_level and not isinstance(child, ast.FunctionDef))


def _others(node: Any, module_level: bool) -> Iterable[str]:
    """What else could stand in the place of a node."""
    match node:
        case ast.Compare(ops=[op]):
            return [_with(node, ops=[new()]) for new in OTHER.get(type(op), ())]
        case ast.BoolOp(op=op):
            return [_with(node, op=OTHER[type(op)][0]())]
        case ast.BinOp(op=op) if type(op) in OTHER and not (module_level and isinstance(op, ast.BitOr)):
            return [_with(node, op=OTHER[type(op)][0]())]
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            return [_as(operand)]
        case ast.Constant(value=bool() as value):
            return [repr(not value)]
        case ast.Constant(value=int() | float() as value):
            return [repr(value + 1)]
        case ast.IfExp(test=test):
            return [_with(node, test=ast.UnaryOp(ast.Not(), test))]
        case ast.Call(keywords=[_, *_] as given) if all(word.arg for word in given):
            return [_with(node, keywords=[k for k in given if k is not word]) for word in given]
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            return [_with(node, func=ast.Name(NAMES[name]))]
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in NAMES:
            return [_with(node, func=ast.Attribute(value, NAMES[name]))]
        case ast.Return(value=ast.AST() as value) if not isinstance(value, ast.Name):
            return ["return None"]
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Break() | ast.Continue():
            return ["pass"]
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            return ["pass"]
    return []


def _with(node: ast.AST, **fields: Any) -> str:
    return _as(type(node)(**{**dict(ast.iter_fields(node)), **fields}))


def _as(node: ast.AST) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def sample(share: float, least: int, seed: int) -> list[Mutant]:
    """The same share of every module's mutants, and at least so many, by a draw that each carries in its id."""
    drawn: list[Mutant] = []
    for pattern in MODULES:
        for path in sorted((ROOT / "src/coterie").glob(pattern)):
            found = list(mutants_of(str(path.relative_to(ROOT / "src/coterie"))))
            found.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.id}".encode()).digest())
            drawn += found[: max(least, round(share * len(found)))]
    return drawn


class Footsteps:
    """A plug-in of pytest that writes down which functions of the library each test enters, and how long it takes."""

    def __init__(self, copy: Path) -> None:
        self.library, self.now, self.found = f"{copy}/coterie/", set[str](), dict[str, Any]()
        self.failed = set[str]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what HELD says of SOME of the contract, and all others."""
        known = {f"tests/{CONTRACT}::{test}[{text}]" for test in HELD for text in SOME}
        items[:] = [item for item in items if CONTRACT not in item.nodeid or item.nodeid in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What fails without any fault can tell of none."""
        if report.failed:
            self.failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Follow one test, with what sets it up."""
        self.now, began = set(), time.monotonic()
        threading.settrace(self.step)
        sys.settrace(self.step)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.found[item.nodeid] = {"seconds": time.monotonic() - began, "enters": sorted(self.now)}

    def step(self, frame: FrameType, event: str, arg: Any) -> None:
        """Called where any function is entered."""
        if frame.f_code.co_filename.startswith(self.library):
            names = [name for name in frame.f_code.co_qualname.split(".") if not name.startswith("<")]
            self.now.add(f"{frame.f_code.co_filename[len(self.library) :]} {'.'.join(names)}")


class Chosen:
    """A plug-in of pytest that keeps some tests, in this order, after all doctests."""

    def __init__(self, tests: Iterable[str]) -> None:
        self.place = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep and order what was collected."""
        kept = [item for item in items if item.nodeid in self.place or isinstance(item, pytest.DoctestItem)]
        items[:] = sorted(kept, key=lambda item: self.place.get(item.nodeid, -1))


def start(paths: Iterable[str], copy: Path, plugin: Any, after: Callable[[], None] = lambda: None) -> int:
    """Run tests over a copy of the library in a process of their own, of which this is the number."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    os.nice(10)
    os.chdir(ROOT)
    out = os.open(copy.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ |= {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(copy))
    options = ["-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow", "-c", f"{ROOT}/pyproject.toml"]
    code = 3
    try:
        code = int(pytest.main([*options, *paths], plugins=[plugin]))
        after()
    finally:
        os._exit(code)


def end(child: int, seconds: float) -> int | None:
    """The exit code of a process, or None if it did not end in this time and was stopped."""
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
    except KeyboardInterrupt:
        os.killpg(child, signal.SIGKILL)
        raise
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def footsteps(copy: Path, file: Path) -> dict[str, Any]:
    """Which functions every test enters, from a run without a fault, or from a file that is newer than all code."""
    code = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    if not file.exists() or file.stat().st_mtime < max(path.stat().st_mtime for path in code):
        steps = Footsteps(copy)
        tests = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
        about = [test for test in tests if ABOUT.search((ROOT / test).read_text()) and not any(s in test for s in SLOW)]
        child = start(about, copy, steps, lambda: _save(file, steps))
        if end(child, 3600) not in (0, 1):
            sys.exit(f"the tests cannot be run:\n{(copy.parent / 'log').read_text()}")
        for test in _failed(copy):
            print(f"left out, since it fails without any fault: {test}", flush=True)
    return dict(json.loads(file.read_text()))


def _save(file: Path, steps: Footsteps) -> None:
    file.write_text(json.dumps({test: found for test, found in steps.found.items() if test not in steps.failed}))


def _failed(copy: Path) -> list[str]:
    """The tests that failed in the last run over a copy."""
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", (copy.parent / "log").read_text(), re.MULTILINE)


def tests_for(mutant: Mutant, steps: dict[str, Any], seconds: float) -> list[str]:
    """The tests that enter a mutant's function, if only with other parameters, the quickest first.

    For one outside of functions it is the module that is entered, and all other tests follow. No more of them than take
    so many seconds.
    """
    entering = {test.split("[")[0] for test in steps if any(_in(mutant, one) for one in steps[test]["enters"])}
    near = [test for test in steps if test.split("[")[0] in entering]
    known = near if near and mutant.function else list(steps)
    known.sort(key=lambda test: (test.split("[")[0] not in entering, steps[test]["seconds"]))
    totals = accumulate(steps[test]["seconds"] for test in known)
    return [test for test, total in zip(known, totals, strict=True) if total <= seconds] or known[:1]


def _in(mutant: Mutant, entered: str) -> bool:
    """Whether what a test entered is the mutant's function, one inside of it, or for want of a function its module."""
    module, name = entered.split(" ")
    return module == mutant.module and f"{name}.".startswith(f"{mutant.function}." if mutant.function else "")


def judge(mutant: Mutant, copy: Path, tests: list[str], seconds: float) -> dict[str, Any]:
    """What these tests say of one mutant."""
    began, place = time.monotonic(), copy / "coterie" / mutant.module
    source, (begin, finish) = place.read_bytes(), mutant.span
    for compiled in place.parent.glob(f"__pycache__/{place.stem}.*"):
        compiled.unlink()
    place.write_bytes(source[:begin] + mutant.after.encode() + source[finish:])
    files = dict.fromkeys([*([str(place)] if b">>>" in source else []), *(test.split("::")[0] for test in tests)])
    try:
        code = end(start(["-x", *files], copy, Chosen(tests)), seconds)
    finally:
        place.write_bytes(source)
    verdict = {None: "timeout", 0: "survived", 5: "survived"}.get(code, "killed")
    known = {key: value for key, value in asdict(mutant).items() if key != "span"}
    return {**known, "verdict": verdict, "by": _failed(copy)[:1], "seconds": round(time.monotonic() - began, 1)}


def table(results: list[dict[str, Any]]) -> str:
    """The share of faults that were noticed, module by module, and the survivors, in Markdown."""
    rows = ["| module | mutants | killed | timeout | survived | score |", "|---|---|---|---|---|---|"]
    for module in [*dict.fromkeys(one["module"] for one in results), "all"]:
        counts = Counter(one["verdict"] for one in results if module in (one["module"], "all"))
        total, lost = counts.total(), counts["survived"]
        score = f"{100 * (total - lost) / total:.0f} %"
        rows.append(f"| {module} | {total} | {counts['killed']} | {counts['timeout']} | {lost} | {score} |")
    rows += ["", "Survivors:", ""]
    for one in results:
        if one["verdict"] == "survived":
            rows.append(f"- {one['id']} {one['module']}:{one['line']} `{one['before']}` → `{one['after']}`")
    return "\n".join(rows)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(mutants: list[Mutant], out: Path, seconds: float, lanes: int) -> None:
    """Judge the mutants that are not in the file yet, and enter each as soon as it is known."""
    known = {one["id"] for one in read(out)}
    left = [mutant for mutant in mutants if mutant.id not in known]
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / str(lane) / "src" for lane in range(lanes)]
        for copy in copies:
            shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        steps = footsteps(copies[0], out.with_suffix(".tests.json"))
        parts = [left[lane::lanes] for lane in range(lanes)]
        children = [start_lane(part, copy, steps, seconds, out) for part, copy in zip(parts, copies, strict=True)]
        ended = [os.waitpid(child, 0)[1] for child in children]
        if any(ended):
            sys.exit("not all mutants were judged; run it again to go on")


def start_lane(*given: Any) -> int:
    """Judge mutants in a process of its own, of which this is the number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        run_lane(*given)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def run_lane(mutants: list[Mutant], copy: Path, steps: dict[str, Any], seconds: float, out: Path) -> None:
    """Judge mutants one after the other."""
    for number, mutant in enumerate(mutants, 1):
        tests = tests_for(mutant, steps, seconds)
        found = judge(mutant, copy, tests, 60 + 5 * seconds)
        with out.open("a") as file:
            file.write(json.dumps({**found, "tests": len(tests)}) + "\n")
        said = f"{found['verdict']:8} {found['seconds']:5} s {mutant.module}:{mutant.line}"
        print(f"{number}/{len(mutants)} {said} {mutant.before!r} -> {mutant.after!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="the file of results")
    parser.add_argument("--share", type=float, default=0.12, help="of each module's mutants")
    parser.add_argument("--least", type=int, default=6, help="so many of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--module", action="append", help="only modules whose path contains this; may be repeated")
    parser.add_argument("--again", type=Path, help="only mutants that survived in this earlier file of results")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for one mutant, as they take without it")
    parser.add_argument("--lanes", type=int, default=1, help="so many mutants side by side")
    parser.add_argument("--list", action="store_true", help="show the sample and run nothing")
    asked = parser.parse_args()
    mutants = sample(1.0 if asked.again else asked.share, asked.least, asked.seed)
    if asked.again:
        open_ones = {one["id"] for one in read(asked.again) if one["verdict"] == "survived"}
        mutants = [mutant for mutant in mutants if mutant.id in open_ones]
    if asked.module:
        mutants = [mutant for mutant in mutants if any(name in mutant.module for name in asked.module)]
    if asked.list:
        print("\n".join(f"{m.id} {m.module}:{m.line} {m.before!r} -> {m.after!r}" for m in mutants))
        return
    run(mutants, asked.out, asked.seconds, asked.lanes)
    print(table(read(asked.out)))


if __name__ == "__main__":
    main()
