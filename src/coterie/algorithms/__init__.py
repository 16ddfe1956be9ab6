"""The published methods, by name."""

from coterie.algorithms.add_ons import cks, con_cks, con_para, con_rep, finetune
from coterie.algorithms.additive import cam
from coterie.algorithms.catalogue import RANGES, REDUCES_TO, add_ons, algorithms, build_algorithm, parts, vote
from coterie.algorithms.choosing import ifca, joint
from coterie.algorithms.ensembles import ensemble, fedavg_ensemble, fedprox_ensemble, soft_vote
from coterie.algorithms.one_model import fedavg, fedopt, fedprox, local
from coterie.algorithms.parameter_clustering import fesem, wecfl

__all__ = [
    "RANGES",
    "REDUCES_TO",
    "add_ons",
    "algorithms",
    "build_algorithm",
    "cam",
    "cks",
    "con_cks",
    "con_para",
    "con_rep",
    "ensemble",
    "fedavg",
    "fedavg_ensemble",
    "fedopt",
    "fedprox",
    "fedprox_ensemble",
    "fesem",
    "finetune",
    "ifca",
    "joint",
    "local",
    "parts",
    "soft_vote",
    "vote",
    "wecfl",
]
