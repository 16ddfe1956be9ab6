"""Compile the engine: ``python -m coterie.native.compile``. Installing the package does it, where there is a compiler.

Only the standard library is used here, because this runs before anything is installed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "source"
FILE = HERE / "engine.so"

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-ffp-contract=fast", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1")

X86 = ("x86_64", "amd64")
WIDE = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma", "-mprefer-vector-width=512")
TARGETS = {"baseline": (16, ()), "avx2": (32, ("-mavx2", "-mfma")), "avx512": (64, WIDE)}
"""The bytes of a vector and the compiler's flags for each instruction set; other machines have the first alone."""


class CannotCompile(Exception):
    """Why there is no compiled engine."""


def compile_engine(to: Path = FILE, extra: tuple[str, ...] = ()) -> Path:
    """Compile the engine into one file for all instruction sets; the file appears whole, or not at all."""
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise CannotCompile("there is no C++ compiler (c++, g++, clang++)")
    on_x86 = platform.machine().lower() in X86
    with tempfile.TemporaryDirectory() as folder:
        units = [[compiler, *FLAGS, *extra, *own] for own in _units(on_x86)]
        objects = _run_all(units, Path(folder))
        whole = Path(folder) / "engine.so"
        _run_all([[compiler, "-shared", *extra, *objects, "-o", str(whole)]], Path(folder))
        beside = to.with_suffix(f".{os.getpid()}")  # two may compile at once
        shutil.move(whole, beside)
    beside.replace(to)
    return to


def is_current(engine: Path = FILE) -> bool:
    """Return whether an engine is there that is newer than everything it is made from."""
    made_from = (Path(__file__), *SOURCE.iterdir())
    return engine.exists() and engine.stat().st_mtime > max(each.stat().st_mtime for each in made_from)


def _units(on_x86: bool) -> list[list[str]]:
    """Return the arguments for each file to compile."""
    targets = TARGETS if on_x86 else {"baseline": TARGETS["baseline"]}
    units = [["-c", str(SOURCE / "dispatch.cpp"), *(["-DCOTERIE_X86"] if on_x86 else []), "-o", "dispatch.o"]]
    for name, (size, flags) in targets.items():
        defined = [f"-DCOTERIE_TARGET={name}", f"-DCOTERIE_BYTES={size}"]
        units.append(["-c", str(SOURCE / "target.cpp"), *defined, *flags, "-o", f"{name}.o"])
    return units


def _run_all(commands: list[list[str]], folder: Path) -> list[str]:
    """Run commands side by side, wait for all of them, and return the files that they wrote."""
    try:
        started = [subprocess.Popen(each, cwd=folder, stderr=subprocess.PIPE, text=True) for each in commands]
    except OSError as error:
        raise CannotCompile(f"{commands[0][0]} cannot be started ({error})") from None
    said = [process.communicate()[1] for process in started]
    for process, words in zip(started, said, strict=True):
        if process.returncode:
            raise CannotCompile(f"the compiler refused: {words.strip()[:2000]}")
    return [str(folder / each[each.index("-o") + 1]) for each in commands]


def main() -> int:
    """Compile, and say where the engine is, or why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=FILE, help="the file to write")
    parser.add_argument("--sanitize", action="store_true", help="with checks of addresses and undefined behaviour")
    given = parser.parse_args()
    try:
        print(compile_engine(given.to, SANITIZERS if given.sanitize else ()))
    except CannotCompile as error:
        print(f"no compiled engine: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
