"""Do two versions of coterie give the same numbers, to the bit? `python benchmarks/same_numbers.py --out before.json`.

Makes a fixed set of 30 runs through the command line alone, so that it outlives whatever is moved inside: every method,
add-ons, three kinds of data (images, a table with classes, a table with a real target), one run that is stopped and
resumed, one on a real federation of this machine. Of each it keeps hashes of models, labels, records and scores, but
for times, and of what rules remember, under whatever name. `--against before.json` names the runs that differ. The
numbers are those of one machine: keep no such file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from safetensors.numpy import load_file

IMAGES = ("--clients", "12", "--rounds", "5", "--clusters", "2", "--partition", "rotation(0,180)", "--threads", "1")
SHORT = ("--clusters", "2", "--rounds", "4", "--threads", "1")
ALGORITHMS = (
    *("local", "fedavg", "fedprox", "fedopt", "ifca", "ifca(choose=race)", "joint", "fesem", "wecfl(shots=2)", "lcfl"),
    *("diffnorm", "gradcos", "briggs", "ocfl", "ocfl-hdbscan(shots=2)", "ocfl-meanshift", "ocfl-affinity"),
    *("ocfl-kmeans", "sattler(minimum=2,eps1=2,eps2=0.01)", "fedavg-ensemble(members=2)", "vote"),
    *("wecfl+cks", "ifca+con-cks", "wecfl+con-rep", "wecfl+cam(warmup=2)", "ifca+cam+finetune"),
)
NOT_NUMBERS = {"seconds", "client_steps_per_second", "peak_memory_mb"}
"""What differs between two runs of the same version."""


def coterie(*words: str, cwd: Path) -> None:
    """Run a command; a failure ends everything, with its words."""
    subprocess.run([sys.executable, "-m", "coterie", *words], cwd=cwd, check=True, capture_output=True)


def table(folder: Path, target: Callable[[Any], Any]) -> str:
    """Six clients of two kinds with 60 rows each, as a CSV file for each."""
    data = folder / f"table-{target.__name__}"
    data.mkdir()
    generator = np.random.default_rng(1)
    for client in range(6):
        x = generator.normal(size=(60, 3))
        y = target((x[:, 0] - x[:, 1]) * (1 if client % 2 else -1))
        rows = [",".join([*map(repr, map(float, row)), str(label)]) for row, label in zip(x, y, strict=True)]
        (data / f"site{client}.csv").write_text("\n".join(["a,b,c,label", *rows]) + "\n")
    return str(data)


def classes(score: Any) -> Any:
    return np.where(score > 0, "yes", "no")


def real(score: Any) -> Any:
    return score * 10


def run_in(folder: Path, *words: str) -> Path:
    """One run, in a folder of its own."""
    out = folder / f"run{len(list(folder.glob('run*')))}"
    coterie("run", *words, "--quiet", "--out", str(out), cwd=folder)
    return out


def resumed(folder: Path) -> Path:
    """A run that is stopped after two rounds of five and goes on from the checkpoint of the second."""
    words = ("wecfl+cks", *IMAGES, "--momentum-kept")
    begun = run_in(folder, *words, "--rounds", "2")
    coterie("run", *words, "--quiet", "--out", str(begun), "--resume", cwd=folder)
    return begun


def federated(folder: Path) -> Path:
    """A run over Flower, with real processes."""
    words = ("wecfl", "--clients", "3", "--rounds", "3", "--partition", "rotation(0,180)", "--clusters", "2")
    coterie("federate", "try", *words, "--quiet", "--folder", str(folder / "try"), cwd=folder)
    (out,) = (folder / "try" / "server" / "runs").iterdir()
    return out


def runs(folder: Path) -> dict[str, Callable[[], Path]]:
    """The thirty, by name."""
    made = {name: (lambda name=name: run_in(folder, name, *IMAGES)) for name in ALGORITHMS}
    yes, amount = table(folder, classes), table(folder, real)
    made["table of classes"] = lambda: run_in(folder, "ifca", "--data", yes, *SHORT, "--advise")
    made["table of numbers"] = lambda: run_in(folder, "wecfl", "--data", amount, *SHORT)
    return made | {"resumed": lambda: resumed(folder), "federated": lambda: federated(folder)}


def hashes(out: Path) -> dict[str, str]:
    """What a run folder holds, part by part."""
    state = load_file(out / "state.safetensors")
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    whole = json.loads((out / "summary.json").read_text())
    parts = {
        "models": b"".join(state[name].tobytes() for name in sorted(state) if "memory" not in name),
        "memory": b"".join(sorted(sha256(state[name].tobytes()).digest() for name in state if "memory" in name)),
        "labels": np.load(out / "labels.npy").tobytes(),
        "records": json.dumps([numbers(record) for record in records]).encode(),
        "summary": json.dumps(numbers(whole)).encode(),
        "clients": (out / "clients.csv").read_bytes(),
    }
    return {name: sha256(content).hexdigest()[:16] for name, content in parts.items()}


def numbers(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record or summary without what differs between two runs, and without the sentence of an advice."""
    found = {name: record[name] for name in sorted(record) if name not in NOT_NUMBERS}
    if "advise" in found:
        found["advise"] = {name: value for name, value in found["advise"].items() if name != "text"}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the hashes here")
    parser.add_argument("--against", type=Path, help="compare with these")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="same"))
    try:
        found = {name: hashes(make()) for name, make in track(runs(folder).items(), description="runs")}
    finally:
        shutil.rmtree(folder)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(found, indent=1))
    if chosen.against is not None:
        before = json.loads(chosen.against.read_text())
        differ = {name: [p for p in found[name] if before[name][p] != found[name][p]] for name in found}
        for name, parts in differ.items():
            if parts:
                print(f"{name}: {', '.join(parts)} differ")
        print(f"{sum(not parts for parts in differ.values())} of {len(found)} runs are the same to the bit")
        sys.exit(any(differ.values()))


if __name__ == "__main__":
    main()
