"""Does a race choose as all the data would? `python benchmarks/racing.py cifar-10 lenet`.

ifca(choose=race) on dirichlet(0.1,10), 200 clients, 10 clusters. In every round the losses of all models on all train
data are computed beside it, for the same models: how many clients chose the model of least loss, how much more the
chosen ones lose (regret), and what share of the evaluations was made.
"""

from __future__ import annotations

import sys
from itertools import islice

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct
from coterie.models.zoo import build_model
from coterie.runtimes.simulator import Simulator
from coterie.server.loop import rounds

ROUNDS, SEED = 10, 1


def main() -> None:
    name, net = sys.argv[1:] or ("cifar-10", "lenet")
    data = ct.load(name).partition("dirichlet(0.1,10)", clients=200, seed=SEED)
    federation = Simulator(data, build_model(net, data.shape, data.classes))
    algorithm = ct.build_algorithm("ifca(choose=race)", 10, fit=ct.Fit(steps=10, batch=32, lr=0.00242, momentum=0.9))
    table = Table("round", "same choice %", "regret %", "evaluations %", title=f"{name}, {net}: race beside exact")
    for done in islice(rounds(algorithm, federation, SEED), ROUNDS):
        clients = done.replies.clients
        losses = federation.engine.cross_losses(done.before.stack, clients)
        chosen, best = losses[np.arange(len(clients)), done.replies.rows], losses.min(axis=1)
        same, regret = np.mean(chosen == best), (chosen - best).mean() / best.mean()
        raced = done.replies.evaluations
        assert raced is not None
        share = raced.sum() / (done.replies.examples.sum() * len(done.before.stack))
        cells = (f"{100 * same:.1f}", f"{100 * regret:.4f}", f"{100 * share:.1f}")
        table.add_row(str(done.before.round), *cells)
        print(done.before.round, *cells, flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
