"""How time and memory grow with clients, parameters, clusters and cores.

    python benchmarks/scaling.py --algorithm wecfl --clients 1000,10000,100000 --rounds 5
    python benchmarks/scaling.py --algorithm ocfl-hdbscan --clients 100000 --rounds 5 --folder
    python benchmarks/scaling.py --figure docs/pictures/scaling.png

Clients have 20 train and 10 test examples of 10 features; client i is of group ``i % groups``, and each group labels
its examples by the side of a direction of its own, so the true groups are known. One process runs each number of
clients, so that its peak memory is its own. Seconds of a round are exclusive by stage: ``train``, ``ask`` (other
exchanges, such as losses under other models), ``assign`` (comparing and clustering), ``average``, ``evaluate``,
``record`` and, with ``--folder``, ``save``; what none of them takes, such as making the clients, is ``rest``. The
exponent is the slope of log seconds a round over log clients.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

FEATURES, TRAIN, TEST, GROUPS = 10, 20, 10, 4
REST = "rest"
STAGES = ("train", "ask", "assign", "average", "evaluate", "record", "save", REST)

FIGURE: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "clients": [{"clients": n} for n in (100, 1000, 10_000, 100_000)],
    "parameters": [{"clients": 8, "features": 100, "model": f"mlp({width})"} for width in (10, 97, 970, 9700, 97_000)],
    "clusters": [{"clients": 2000, "groups": k, "features": 100} for k in (2, 5, 10, 20, 50, 100)],
    "cores": [{"clients": 200, "features": 100, "model": "mlp(500)", "threads": t} for t in (1, 2)],
}
"""The curves of the figure: what changes, and the runs of each point."""


class Stopwatch:
    """Adds up the seconds of stages; time in an inner stage does not count in the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.inside, self.since = [REST], time.perf_counter()

    def _turn(self) -> None:
        now = time.perf_counter()
        self.seconds[self.inside[-1]] += now - self.since
        self.since = now

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time within as this stage's."""
        self._turn()
        self.inside.append(name)
        try:
            yield
        finally:
            self._turn()
            self.inside.pop()

    def timed(self, function: Callable[..., Any], name: str | Callable[..., str]) -> Callable[..., Any]:
        """Return the same function, as a stage; its name may depend on the arguments."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name if isinstance(name, str) else name(*args, **kwargs)):
                return function(*args, **kwargs)

        return call


def federation(clients: int, groups: int, features: int, seed: int) -> Any:
    """Return clients whose groups label random examples by directions that are far apart."""
    from coterie.data.federated import Federated, Split

    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(groups, features))
    if groups <= features:
        directions = np.linalg.qr(directions.T)[0].T
    truth = np.arange(clients) % groups

    def split(size: int) -> Split:
        x = rng.normal(size=(clients * size, features)).astype(np.float32)
        own = directions.astype(np.float32)[np.repeat(truth, size)]
        side = np.sign(np.einsum("if,if->i", x, own))
        x += side[:, None] * own  # two clouds with a gap between them
        return Split(x, (side > 0).astype(np.int64), size * np.arange(clients + 1))

    names = tuple(f"client-{i:06d}" for i in range(clients))
    return Federated("directions", f"{groups} groups", names, split(TRAIN), split(TEST), 2, groups=truth)


def stage_of_ask(federation: Any, task: Any, *rest: Any) -> str:
    """Return the stage of an exchange: what clients are asked for says it."""
    if task.report.evaluate_on is not None:
        return "evaluate"
    return "train" if task.fit else "ask"


def measured(chosen: argparse.Namespace) -> dict[str, Any]:
    """Run once in this process, and return seconds of a round by stage, peak memory, and how good the clusters are."""
    import coterie as ct
    from coterie.experiments.records import RoundRecorder
    from coterie.experiments.run_folder import RunFolder
    from coterie.runtimes.simulator import Simulator
    from coterie.server import loop

    data = federation(chosen.clients, chosen.groups, chosen.features, chosen.seed)
    clusters = {"clusters": chosen.groups} if ct.algorithms.has_number(chosen.algorithm) else {}
    watch, begun, lasted = Stopwatch(), time.perf_counter(), []
    with ExitStack() as stack:
        for owner, name, stage in (
            (Simulator, "ask", stage_of_ask),
            (loop, "average", "average"),
            (RoundRecorder, "describe", "record"),
            (RunFolder, "add", "save"),
            (RunFolder, "checkpoint", "save"),
        ):
            stack.enter_context(mock.patch.object(owner, name, watch.timed(getattr(owner, name), stage)))
        algorithm = ct.build_algorithm(chosen.algorithm, **clusters, fit=ct.Fit(steps=chosen.steps, lr=chosen.lr))
        algorithm = replace(
            algorithm,
            assign=watch.timed(algorithm.assign, "assign"),
            prepare=watch.timed(algorithm.prepare, "assign"),
        )
        out = stack.enter_context(tempfile.TemporaryDirectory()) if chosen.folder else None
        found = ct.run(
            algorithm,
            data,
            chosen.model,
            chosen.rounds,
            chosen.seed,
            lambda record: lasted.append(record["seconds"]),
            None if out is None else Path(out) / "run",
            threads=chosen.threads,
            **json.loads(chosen.options),
        )
    watch._turn()
    return {
        "clients": chosen.clients,
        "parameters": found.model.layout.size,
        "whole_run": time.perf_counter() - begun,
        "round": float(np.mean(lasted)),
        "slowest_round": max(lasted),
        "memory_gb": found.summary["peak_memory_mb"] / 1024,
        "ari": found.summary["ari"],
        "clusters": found.summary["clusters_found"],
        "accuracy": found.summary["accuracy"],
        "stages": {name: watch.seconds[name] / chosen.rounds for name in STAGES},
        "notes": found.summary["notes"],
    }


def in_a_process(chosen: argparse.Namespace, **changed: Any) -> dict[str, Any]:
    """Measure in a process of its own: memory that an earlier run freed would count."""
    options = {**vars(chosen), **changed}
    words = [
        f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value not in (None, True, False)
    ]
    flags = [f"--{name}" for name, value in options.items() if value is True]
    done = subprocess.run([sys.executable, __file__, "--one", *words, *flags], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def exponent(found: Sequence[Mapping[str, Any]], least: int = 1000) -> float | None:
    """Return the slope of log seconds a round over log clients, from ``least`` clients on."""
    points = [(each["clients"], each["round"]) for each in found if each["clients"] >= least]
    if len(points) < 2:
        return None
    return float(np.polyfit(*np.log(np.array(points)).T, 1)[0])


def told(found: Mapping[str, Any]) -> str:
    """Return one measurement as a line."""
    stages = " ".join(f"{name} {found['stages'][name]:.2f}" for name in STAGES if found["stages"][name] >= 0.005)
    return (
        f"{found['clients']:>7} clients {found['parameters']:>8} parameters: {found['round']:.2f} s a round "
        f"({stages}; slowest {found['slowest_round']:.2f}), {found['whole_run']:.0f} s in all, "
        f"{found['memory_gb']:.2f} GB, {found['clusters']} clusters, ARI {found['ari']:.3f}"
    )


def draw(path: Path, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw seconds and memory of a round over what changes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    places = {"clients": "clients", "parameters": "parameters", "clusters": "groups", "cores": "threads"}
    figure, axes = plt.subplots(1, len(curves), figsize=(3.2 * len(curves), 3), constrained_layout=True)
    for axis, (name, found) in zip(axes, curves.items(), strict=True):
        where = [each[places[name]] for each in found]
        axis.plot(where, [each["round"] for each in found], "o-", color="C0", label="seconds a round")
        axis.plot(where, [each["memory_gb"] for each in found], "s--", color="C1", label="peak memory, GB")
        axis.set_xlabel(name)
        axis.set_xscale("log", base=2 if name == "cores" else 10)
        axis.set_yscale("log")
        axis.grid(visible=True, alpha=0.3)
    axes[0].legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def curves_of(chosen: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Measure every point of the figure."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for name, points in FIGURE.items():
        curves[name] = []
        for point in points:
            found = in_a_process(chosen, figure=None, **point)
            curves[name].append({**found, **{k: v for k, v in point.items() if k in ("groups", "threads")}})
            print(f"{name}: {told(found)}", flush=True)
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1000", help="a number of clients, or several with commas")
    parser.add_argument("--algorithm", default="wecfl")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--features", type=int, default=FEATURES)
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--options", default="{}", help="further options of a run as JSON: '{\"sketch\": 256}'")
    parser.add_argument("--folder", action="store_true", help="also save records and checkpoints in a run folder")
    parser.add_argument("--figure", help="measure the curves of docs/performance.md and draw them here")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        chosen.clients = int(chosen.clients)
        print(json.dumps(measured(chosen)))
        return
    if chosen.figure:
        draw(Path(chosen.figure), curves_of(chosen))
        return
    found = []
    for clients in chosen.clients.split(","):
        found.append(in_a_process(chosen, clients=int(clients)))
        print(told(found[-1]), *found[-1]["notes"], sep="\n  ", flush=True)
    slope = exponent(found)
    if slope is not None:
        print(f"exponent of seconds a round over clients, from 1,000: {slope:.2f}")


if __name__ == "__main__":
    main()
