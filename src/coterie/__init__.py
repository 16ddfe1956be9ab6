"""coterie: clustered federated learning, published methods as compositions of small tested parts.

>>> import coterie as ct
>>> clients = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=1)
>>> run = ct.run(ct.wecfl(clusters=4), clients, model="mlp", rounds=3, seed=1)
>>> run.summary["ari"]
1.0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.lazy import importer

if TYPE_CHECKING:
    from coterie.algorithms import (
        add_ons,
        briggs,
        build_algorithm,
        cam,
        cks,
        clove,
        con_cks,
        con_para,
        con_rep,
        diffnorm,
        fedavg,
        fedavg_ensemble,
        fedopt,
        fedprox,
        fedprox_ensemble,
        fedsoft,
        fesem,
        finetune,
        flux,
        given,
        gradcos,
        ifca,
        joint,
        lcfl,
        local,
        ocfl,
        ocfl_affinity,
        ocfl_hdbscan,
        ocfl_kmeans,
        ocfl_meanshift,
        pacfl,
        sattler,
        stocfl,
        vote,
        wecfl,
    )
    from coterie.algorithms import algorithms as methods
    from coterie.api.comparing import compare
    from coterie.api.run import Run, load_run, run
    from coterie.api.tuning import Tuned, tune
    from coterie.data import (
        Dataset,
        Federated,
        Schema,
        Split,
        check_own,
        from_arrays,
        from_datasets,
        from_frame,
        load,
        load_folder,
        load_own,
        load_pooled,
    )
    from coterie.estimators import ClusteredClassifier, ClusteredRegressor
    from coterie.protocol.client_function import ClientData, client_function
    from coterie.protocol.report import Report
    from coterie.protocol.task import Fit, Loss, Proximal, Task
    from coterie.reporting.compared import Comparison
    from coterie.server.contract import Algorithm
    from coterie.server.distances.separation import separation_threshold

__all__ = [
    "Algorithm",
    "ClientData",
    "ClusteredClassifier",
    "ClusteredRegressor",
    "Comparison",
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
    "Tuned",
    "add_ons",
    "briggs",
    "build_algorithm",
    "cam",
    "check_own",
    "cks",
    "client_function",
    "clove",
    "compare",
    "con_cks",
    "con_para",
    "con_rep",
    "diffnorm",
    "fedavg",
    "fedavg_ensemble",
    "fedopt",
    "fedprox",
    "fedprox_ensemble",
    "fedsoft",
    "fesem",
    "finetune",
    "flux",
    "from_arrays",
    "from_datasets",
    "from_frame",
    "given",
    "gradcos",
    "ifca",
    "joint",
    "lcfl",
    "load",
    "load_folder",
    "load_own",
    "load_pooled",
    "load_run",
    "local",
    "methods",
    "ocfl",
    "ocfl_affinity",
    "ocfl_hdbscan",
    "ocfl_kmeans",
    "ocfl_meanshift",
    "pacfl",
    "run",
    "sattler",
    "separation_threshold",
    "stocfl",
    "tune",
    "vote",
    "wecfl",
]

_HOMES = {
    "coterie.data": (
        *("Dataset", "Federated", "Schema", "Split"),
        *("check_own", "from_arrays", "from_datasets", "from_frame"),
        *("load", "load_folder", "load_own", "load_pooled"),
    ),
    "coterie.api.comparing": ("compare",),
    "coterie.api.run": ("Run", "load_run", "run"),
    "coterie.api.tuning": ("Tuned", "tune"),
    "coterie.estimators": ("ClusteredClassifier", "ClusteredRegressor"),
    "coterie.reporting.compared": ("Comparison",),
    "coterie.protocol.client_function": ("ClientData", "client_function"),
    "coterie.protocol.report": ("Report",),
    "coterie.protocol.task": ("Fit", "Loss", "Proximal", "Task"),
    "coterie.server.contract": ("Algorithm",),
    "coterie.server.distances.separation": ("separation_threshold",),
}
"""The modules of the public names that are no methods."""

if not TYPE_CHECKING:  # a type checker reads the imports above, and so knows which names there are
    __getattr__ = importer(__name__, {"coterie.algorithms": (*__all__, "methods=algorithms"), **_HOMES})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
