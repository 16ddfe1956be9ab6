"""The published methods, by name.

"Thesis" is Ma, "Clustered federated learning": wecfl, cks, con-para, con-rep, con-cks and cam are its methods.
"""

from coterie.algorithms.add_ons import cks, con_cks, con_para, con_rep, finetune, keeping_momentum
from coterie.algorithms.auto import advised
from coterie.algorithms.cam import cam
from coterie.algorithms.choosing import ifca, joint
from coterie.algorithms.descriptions import flux, given, pacfl
from coterie.algorithms.ensembles import ensemble, fedavg_ensemble, fedprox_ensemble, soft_vote
from coterie.algorithms.loss_clustering import clove
from coterie.algorithms.merging import stocfl
from coterie.algorithms.one_model import fedavg, fedopt, fedprox, local
from coterie.algorithms.one_shot import briggs, diffnorm, gradcos, lcfl
from coterie.algorithms.parameter_clustering import fesem, wecfl
from coterie.algorithms.registry import (
    RANGES,
    REDUCES_TO,
    OfRounds,
    add_ons,
    algorithms,
    build_algorithm,
    has_number,
    parts,
    spelled_out,
    vote,
)
from coterie.algorithms.soft import fedsoft
from coterie.algorithms.splitting import ocfl, ocfl_affinity, ocfl_hdbscan, ocfl_kmeans, ocfl_meanshift, sattler

__all__ = [
    "RANGES",
    "REDUCES_TO",
    "OfRounds",
    "add_ons",
    "advised",
    "algorithms",
    "briggs",
    "build_algorithm",
    "cam",
    "cks",
    "clove",
    "con_cks",
    "con_para",
    "con_rep",
    "diffnorm",
    "ensemble",
    "fedavg",
    "fedavg_ensemble",
    "fedopt",
    "fedprox",
    "fedprox_ensemble",
    "fedsoft",
    "fesem",
    "finetune",
    "flux",
    "given",
    "gradcos",
    "has_number",
    "ifca",
    "joint",
    "keeping_momentum",
    "lcfl",
    "local",
    "ocfl",
    "ocfl_affinity",
    "ocfl_hdbscan",
    "ocfl_kmeans",
    "ocfl_meanshift",
    "pacfl",
    "parts",
    "sattler",
    "soft_vote",
    "spelled_out",
    "stocfl",
    "vote",
    "wecfl",
]
