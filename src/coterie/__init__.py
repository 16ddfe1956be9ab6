"""coterie: clustered federated learning, published methods as compositions of small tested parts.

>>> import coterie as ct
>>> clients = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=1)
>>> run = ct.run(ct.wecfl(clusters=4), clients, model="mlp", rounds=3, seed=1)
>>> run.summary["ari"]
1.0
"""

from coterie.algorithms import (
    add_ons,
    algorithms,
    build_algorithm,
    cam,
    cks,
    con_cks,
    con_para,
    con_rep,
    fedavg,
    fedavg_ensemble,
    fedopt,
    fedprox,
    fedprox_ensemble,
    fesem,
    finetune,
    ifca,
    joint,
    local,
    vote,
    wecfl,
)
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
    "add_ons",
    "algorithms",
    "build_algorithm",
    "cam",
    "check_own",
    "cks",
    "con_cks",
    "con_para",
    "con_rep",
    "fedavg",
    "fedavg_ensemble",
    "fedopt",
    "fedprox",
    "fedprox_ensemble",
    "fesem",
    "finetune",
    "ifca",
    "joint",
    "load",
    "load_folder",
    "load_own",
    "load_pooled",
    "local",
    "run",
    "vote",
    "wecfl",
]
