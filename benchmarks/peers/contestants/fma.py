"""What the processor can do at best: a C program of nothing but fused multiply-adds on all cores. It has no model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.peers.protocol import serve, task

BILLIONS = 40
"""Operations of each core in a round, a few tenths of a second."""


def compiled(folder: Path) -> Path:
    """Compile the program for this machine; end with the reason if that cannot be done."""
    source, program = Path(__file__).parents[1] / "fma.c", folder / "fma"
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("there is no C compiler")
    flags = ["-O3", "-march=native", "-ffp-contract=fast", "-pthread"]
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True)
    return program


if __name__ == "__main__":
    command = [str(compiled(task().folder)), str(len(os.sched_getaffinity(0))), str(BILLIONS)]
    serve(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), lambda: np.zeros(0))
