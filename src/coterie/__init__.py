"""coterie: clustered federated learning, published methods as compositions of small tested parts.

>>> import coterie as ct
>>> clients = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=1)
>>> run = ct.run(ct.wecfl(clusters=4), clients, model="mlp", rounds=3, seed=1)
>>> run.summary["ari"]
1.0
"""

from coterie.algorithms import algorithms, build_algorithm, fedavg, fedopt, fedprox, fesem, ifca, local, wecfl
from coterie.data import Dataset, Federated, Schema, Split, check_own, load, load_folder, load_own, load_pooled
from coterie.experiment import Run, run
from coterie.protocol.task import Fit, Loss, Proximal, Report, Task
from coterie.server.loop import Algorithm

__all__ = [
    "Algorithm",
    "Dataset",
    "Federated",
    "Fit",
    "Loss",
    "Proximal",
    "Report",
    "Run",
    "Schema",
    "Split",
    "Task",
    "algorithms",
    "build_algorithm",
    "check_own",
    "fedavg",
    "fedopt",
    "fedprox",
    "fesem",
    "ifca",
    "load",
    "load_folder",
    "load_own",
    "load_pooled",
    "local",
    "run",
    "wecfl",
]
