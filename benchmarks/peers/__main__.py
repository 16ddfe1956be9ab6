"""Speed of coterie's engine beside other frameworks, in one go: `make bench-peers`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.peers import environments
from benchmarks.peers.contestants.fma import BILLIONS
from benchmarks.peers.driver import ROOT, Result, compete
from benchmarks.peers.table import FMA, GEMM, OURS, Outcome, report
from benchmarks.peers.workloads import Workload, cases, prepare
from coterie.engine.plan import available_cores

CONTESTANTS = {
    OURS: ("coterie_engine", ""),
    "plain loop": ("plain_loop", ""),
    "good loop": ("good_loop", ""),
    "Flower + Ray": ("flower_ray", "flower"),
    "pfl": ("pfl_fedavg", "pfl"),
    "fluke": ("fluke_fedavg", "fluke"),
    "fedbase": ("fedbase_nodes", "fedbase"),
    "JAX": ("jax_scan", "jax"),
    GEMM: ("gemm", ""),
    FMA: ("fma", ""),
}
"""The program of each contestant, and the environment in which it runs; coterie's own where none is named."""

PEAK_FLOPS = {GEMM: 10 * 2 * 2048.0**3, FMA: 1e9 * BILLIONS * available_cores()}


def main() -> None:
    options = parsed(sys.argv[1:])
    commands, missing = programs(options.peers, options.build)
    outcomes: list[Outcome] = []
    for case in cases(options.models, options.clients):
        workload = prepare(case, options.build / "workloads")
        results = compete(commands, workload.folder, options.repeats)
        outcomes.append(judged(workload, {**results, **missing}))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report(outcomes, options.repeats))  # after every workload: a long run may be interrupted
    print(options.out.read_text())


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--models", nargs="+", default=[], help="cnn, lenet, mlp, logistic (all)")
    parser.add_argument("--peers", nargs="+", default=[], choices=list(CONTESTANTS), help="contestants (all)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of which the median is taken (5)")
    parser.add_argument("--clients", type=int, help="clients of every workload (200; logistic 2,000)")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "peers", help="for environments and workloads")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "peers.md", help="the table (runs/peers.md)")
    return parser.parse_args(words)


def programs(peers: list[str], build: Path) -> tuple[dict[str, list[str]], dict[str, Result]]:
    """Return the commands of the contestants, and the results of those whose environment could not be made."""
    commands: dict[str, list[str]] = {}
    missing: dict[str, Result] = {}
    wanted = dict.fromkeys([OURS, *peers, GEMM, FMA]) if peers else CONTESTANTS
    for name in wanted:
        program, environment = CONTESTANTS[name]
        try:
            python = environments.python_of(environment, build / "environments") if environment else sys.executable
        except environments.NotInstalled as reason:
            missing[name] = Result(failure=f"not installed: {reason}")
        else:
            commands[name] = [python, "-m", f"benchmarks.peers.contestants.{program}"]
    return commands, missing


def judged(workload: Workload, results: dict[str, Result]) -> Outcome:
    """Return the results with the loss of each contestant's model, and the peaks in operations per second."""
    peaks = {name: PEAK_FLOPS[name] / results[name].median for name in (GEMM, FMA) if results[name].seconds}
    start, losses = workload.start(), {}
    for name, result in results.items():
        if result.model is not None and name not in PEAK_FLOPS:
            if len(result.model) == len(start):
                losses[name] = workload.loss(result.model)
            else:
                result.failure = f"another model: {len(result.model):,} parameters instead of {len(start):,}"
    title = f"{workload.case.model}, {workload.case.clients:,} clients"
    return Outcome(title, workload.flops, workload.loss(start), results, losses, peaks)


if __name__ == "__main__":
    main()
