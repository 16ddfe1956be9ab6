"""One-shot clustering on the eight splits of the OCFL paper: `python benchmarks/ocfl.py mnist`.

Three groups of classes, overlapping or not, balanced or not, 15 or 30 clients of 500 examples; 3 local epochs of SGD at
0.01, batch 32; the paper's kind of net, or another by `--model lenet`. ocfl-hdbscan runs until five rounds after its
event. The other ways to cluster, which fire in the same round, go on from the state before it, so that the rounds until
then are made once; briggs is told to fire there too. Those that find the same clusters train alike from there, so that
is done once as well. Shown are the round of the event, and the adjusted Rand index and accuracy five rounds after it.
The paper's column is its mean ARI over 50 rounds, of which the rounds before the event count as 0.
"""

from __future__ import annotations

import argparse
from itertools import islice

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.data import Federated
from coterie.models.zoo import build_model
from coterie.runtimes.simulator import Simulator
from coterie.server.contract import Algorithm, State
from coterie.server.loop import Round, rounds
from coterie.server.serving import evaluate

FIT = ct.Fit(epochs=3, steps=None, batch=32, lr=0.01, momentum=0.0)
OTHERS = ("ocfl-kmeans(3)", "ocfl-meanshift", "ocfl-affinity", "briggs")
AFTER, MOST, SEED = 5, 20, 1
# Zuziak et al., table I: mean ARI over 50 rounds. Rows as in SPLITS; briggs is empty where the table has none.
SPLITS = [(clients, overlap, even) for clients in (15, 30) for overlap in (False, True) for even in (True, False)]
PAPER: dict[str, dict[str, tuple[float | None, ...]]] = {
    "mnist": {
        "ocfl-hdbscan": (0.96, 0.96, 0.96, 0.96, 0.92, 0.98, 0.94, 0.94),
        "ocfl-kmeans(3)": (0.96, 0.96, 0.96, 0.96, 0.96, 0.96, 0.90, 0.94),
        "ocfl-meanshift": (0.71, 0.96, 0.87, 0.96, 0.85, 0.94, 0.87, 0.94),
        "ocfl-affinity": (0.23, 0.13, 0.23, 0.30, 0.38, 0.66, 0.36, 0.50),
        "briggs": (None, None, None, None, None, -0.044, None, None),
    },
    "fashion-mnist": {
        "ocfl-hdbscan": (0.96, 0.98, 0.96, 0.98, 0.98, 0.98, 0.94, 0.96),
        "ocfl-kmeans(3)": (0.98, 0.98, 0.98, 0.98, 0.96, 0.98, 0.96, 0.96),
        "ocfl-meanshift": (0.98, 0.98, 0.98, 0.98, 0.85, 0.96, 0.94, 0.98),
        "ocfl-affinity": (0.23, 0.22, 0.23, 0.30, 0.39, 0.66, 0.37, 0.51),
        "briggs": (-0.14, None, None, None, None, None, -0.07, -0.047),
    },
}


def until_the_event(algorithm: Algorithm, federation: Simulator) -> Round | None:
    """The round in which the clusters form; None if nothing happens."""
    steps = islice(rounds(algorithm, federation, SEED), MOST)
    return next((done for done in steps if "shots" in done.state.memory), None)


def each_way(fired: Round, federation: Simulator, data: Federated) -> list[str]:
    """The scores of every way to cluster, five rounds after it did so in the round of the event."""
    seen: dict[bytes, str] = {}
    cells = []
    for name in ("ocfl-hdbscan", *OTHERS):
        text = f"briggs(warmup={fired.before.round})" if name == "briggs" else name
        algorithm = ct.build_algorithm(text, fit=FIT)
        state = next(rounds(algorithm, federation, SEED, fired.before)).state
        who_with_whom = (state.labels[:, None] == state.labels).tobytes()
        if who_with_whom not in seen:
            last = list(islice(rounds(algorithm, federation, SEED, state), AFTER))[-1].state
            assert np.array_equal(last.labels, state.labels), "one-shot clusters stay as they are"
            seen[who_with_whom] = scores(algorithm, federation, data, last)
        cells.append(seen[who_with_whom])
    return cells


def scores(algorithm: Algorithm, federation: Simulator, data: Federated, state: State) -> str:
    found = evaluate(algorithm, federation, state, SEED)
    assert found.metrics is not None
    accuracy = (found.metrics[:, 0] * data.test.sizes).sum() / data.test.sizes.sum()
    return f"{adjusted_rand_score(data.groups, state.labels):.2f} / {100 * accuracy:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", default=["mnist"], help="mnist, fashion-mnist")
    parser.add_argument("--model", default="tiny-vgg")
    chosen = parser.parse_args()
    console = Console(width=150)
    for name in chosen.data:
        table = Table(title=f"{name}: ARI / accuracy {AFTER} rounds after the event (paper: mean ARI of 50 rounds)")
        for title in ("clients", "overlap", "balanced", "event", *PAPER[name]):
            table.add_column(title, justify="right", no_wrap=True)
        for place, (clients, overlap, balanced) in enumerate(SPLITS):
            text = f"blocks(overlap={str(overlap).lower()},balanced={str(balanced).lower()})+few(500)"
            data = ct.load(name).partition(text, clients=clients, seed=SEED)
            federation = Simulator(data, build_model(chosen.model, data.shape, data.classes))
            fired = until_the_event(ct.build_algorithm("ocfl-hdbscan", fit=FIT), federation)
            cells = [f"never in {MOST}"]
            if fired is not None:
                paper = [rows[place] for rows in PAPER[name].values()]
                found = each_way(fired, federation, data)
                pairs = zip(found, paper, strict=True)
                cells = [str(fired.before.round), *(c if p is None else f"{c} ({p:.2f})" for c, p in pairs)]
            table.add_row(str(clients), *("yes" if flag else "no" for flag in (overlap, balanced)), *cells)
            console.print(text, *cells, soft_wrap=True)
        console.print(table)


if __name__ == "__main__":
    main()
