"""The catalogue: one short function per published method, each a composition of the server's parts, and add-ons."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coterie.algorithms.add_ons import cks, con_cks, con_para, con_rep, finetune
from coterie.algorithms.auto import AUTO
from coterie.algorithms.cam import cam
from coterie.algorithms.choosing import CHOICES, ifca, joint
from coterie.algorithms.descriptions import flux, given, pacfl
from coterie.algorithms.ensembles import fedavg_ensemble, fedprox_ensemble, soft_vote
from coterie.algorithms.loss_clustering import clove
from coterie.algorithms.merging import stocfl
from coterie.algorithms.method import add_on, method
from coterie.algorithms.one_model import fedavg, fedopt, fedprox, local
from coterie.algorithms.one_shot import briggs, diffnorm, gradcos, lcfl
from coterie.algorithms.parameter_clustering import fesem, wecfl
from coterie.algorithms.soft import fedsoft
from coterie.algorithms.splitting import ocfl, ocfl_affinity, ocfl_hdbscan, ocfl_kmeans, ocfl_meanshift, sattler
from coterie.errors import UsageError
from coterie.limits import ADD_ONS, check_most
from coterie.protocol.task import Fit
from coterie.server.contract import Algorithm
from coterie.textforms import Catalogue, Value, parse
from coterie.typed import one_of


@method
def vote(
    first: str = "fedavg",
    second: str = "ifca",
    clusters: int | str = 2,
    choose: str | None = None,
    by: str = "logits",
    fit: Fit = Fit(),
) -> Algorithm:
    """Run two algorithms separately from one seed, and serve clients the sum of their logits.

    argmax f(x; T_1) + f(x; T_2), thesis eq. 7.36 and table 7.5; each is a text such as ``wecfl(shots=10)+cks``. The
    clusters reported are those of the second. Unlike the parts of ``cam`` the two train independently. ``clusters`` and
    ``choose`` are for those of the two that have them; ``by``: softmax or majority in place of logits.
    """
    numbers = [(text, clusters if has_number(text) else None) for text in (first, second)]
    return soft_vote(*(build_algorithm(text, number, fit, choose) for text, number in numbers), by=by)


algorithms = Catalogue(
    "algorithm",
    {
        "local": local,
        "fedavg": fedavg,
        "fedprox": fedprox,
        "fedopt": fedopt,
        "ifca": ifca,
        "joint": joint,
        "clove": clove,
        "fesem": fesem,
        "wecfl": wecfl,
        "lcfl": lcfl,
        "diffnorm": diffnorm,
        "gradcos": gradcos,
        "briggs": briggs,
        "pacfl": pacfl,
        "flux": flux,
        "given": given,
        "ocfl": ocfl,
        "ocfl-hdbscan": ocfl_hdbscan,
        "ocfl-meanshift": ocfl_meanshift,
        "ocfl-affinity": ocfl_affinity,
        "ocfl-kmeans": ocfl_kmeans,
        "sattler": sattler,
        "stocfl": stocfl,
        "fedsoft": fedsoft,
        "fedavg-ensemble": fedavg_ensemble,
        "fedprox-ensemble": fedprox_ensemble,
        "vote": vote,
    },
    hidden=("fit",),
    typed=True,
    adopt=method,
)

REDUCES_TO = {
    "fedprox(strength=0)": "fedavg",
    "fedopt(server=sgd,lr=1)": "fedavg",
    "ifca(clusters=1)": "fedavg",
    "ifca(clusters=1,start=random)": "fedavg",
    "joint(clusters=1)": "joint(clusters=1,strength=0)",
    "clove(clusters=1)": "fedavg",
    "stocfl(threshold=-1,strength=0)": "fedavg",
    "fedsoft(clusters=1)": "fedprox(strength=0.1)",
    "fesem(clusters=1)": "fedavg",
    "wecfl(clusters=1)": "fedavg",
    "wecfl(clusters=1,shots=2)": "fedavg",
    "lcfl(clusters=1)": "fedavg",
    "diffnorm(clusters=1,start=medoid)": "fedavg",
    "gradcos(clusters=1,start=global)": "fedavg",
    "briggs(cut=2)": "fedavg",
    "pacfl(clusters=1)": "fedavg",
    "pacfl(clusterer=agglomerative(cut=90))": "fedavg",
    "flux(clusterer=agglomerative(clusters=1),warmup=1)": "fedavg",
    "given(country)": "fedavg",
    "ocfl-kmeans(clusters=1)": "fedavg",
    "ocfl": "ocfl-hdbscan",
    "ocfl(clusterer=kmeans,server=sgd,server_lr=1)": "ocfl-kmeans",
    "ocfl(clusterer=kmeans(clusters=1),server=sgd,server_lr=0.5)": "fedopt(server=sgd,lr=0.5)",
    "lcfl(clusters=1,warmup=0,server=sgd,server_lr=1)": "fedavg",
    "fedavg(weights=uniform)": "sattler",
    "ocfl-hdbscan(members=8)": "fedavg",
    "sattler(weights=examples)": "fedavg",
    "wecfl+cks(strength=0)": "wecfl",
    "wecfl+cks(strength=0,others=true)": "wecfl",
    "ifca+con-para(strength=0)": "ifca",
    "fesem+con-rep(strength=0)": "fesem",
    "wecfl+con-cks(strength=0,sharing=0)": "wecfl",
    "wecfl(clusters=1)+cam(pull=0)": "ifca(clusters=1)+cam",
    "fesem+cks(strength=0)+cam": "fesem+cam",
    "fedavg-ensemble(members=1)": "fedavg",
    "fedprox-ensemble(members=2,strength=0)": "fedavg",
    "vote(fedavg,wecfl)": "wecfl",
}
"""The method that each method equals when there is nothing to cluster; the contract tests check it."""


@dataclass(frozen=True)
class OfRounds:
    """Published numbers of rounds in runs of ``rounds`` rounds; other runs take the same shares.

    >>> OfRounds((0, 10, 30), 100).within(20)
    (0, 2, 6)
    """

    values: tuple[int, ...]
    rounds: int

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.values))} of {self.rounds} rounds"

    def within(self, rounds: int) -> tuple[Value, ...]:
        """Return the same shares of a run of this number of rounds."""
        return tuple(sorted({round(value * rounds / self.rounds) for value in self.values}))


RANGES: dict[str, dict[str, tuple[Value, ...] | OfRounds]] = {
    # The rates of the papers that say one (thesis 0.001, ocfl 0.01, lcfl 0.02 and 0.03) and our default for dense nets.
    "": {"lr": (0.001, 0.01, 0.02, 0.03, 0.1)},
    # Li et al. 2020 tune it over 0.001, 0.01, 0.1 and 1; the thesis, section 3.5.2, has 0.95 for the last.
    "fedprox": {"strength": (0.001, 0.01, 0.1, 0.95)},
    # Reddi et al. 2021, appendix D: powers of ten.
    "fedopt": {"fedopt.lr": (0.001, 0.01, 0.1, 1), "tau": (1e-4, 1e-3, 1e-2)},
    # Vahidian et al.: 3 to 5 directions. Their thresholds are of another angle.
    "pacfl": {"p": (3, 5)},
    # Lin et al. vary lambda between 0.1 and 0.5.
    "joint": {"strength": (0.1, 0.2, 0.3, 0.4, 0.5)},
    # Ours, because ours are relative, where eps2 of 1 or more never splits. Published thresholds are absolute: 0.4 and
    # 1.6 in Sattler et al.'s public code; the ocfl paper, section IV-B, searched eps1 in [0.2, 0.6], eps2 in [1.2, 2.0]
    # and ended at 0.35 and 0.35.
    "sattler": {"eps1": (0.2, 0.35, 0.5), "eps2": (0.2, 0.35, 0.5)},
    # Zeng et al.: the thresholds of their public code by data set, and the strengths of its two programs.
    "stocfl": {"threshold": (0.2, 0.3, 0.5, 0.65), "strength": (0.05, 0.1)},
    # Ruan and Joe-Wong: lambda on CIFAR-10, on MNIST and letters, and in linear regression.
    "fedsoft": {"strength": (0.01, 0.1, 1)},
    # The thesis, sections 5.4.1.3 (cks), 4.4.1.3 (con) and 6.4.1.3 (con-cks).
    "cks": {"cks.strength": (0.001, 0.01, 0.1, 1)},
    "con-para": {"con-para.strength": (0.1, 0.5, 2, 5), "con-para.temperature": (0.1, 1, 10)},
    "con-rep": {"con-rep.strength": (0.1, 0.5, 2, 5), "con-rep.temperature": (0.1, 1, 10)},
    "con-cks": {
        "con-cks.strength": (0.1, 0.5, 2, 5),
        "con-cks.temperature": (0.1, 1, 10),
        "sharing": (0.001, 0.01, 0.1, 1),
    },
    # The thesis, section 7.4.1 and table 7.6. Where clients choose there is no pull.
    "cam": {"pull": (0.001, 0.01, 0.1), "cam.warmup": OfRounds((0, 10, 20, 30, 40, 50), 100)},
}
"""Values to search by algorithm, and for all algorithms under the empty name: published ones, except sattler's."""


add_ons = Catalogue(
    "add-on of an algorithm",
    {
        "con-rep": con_rep,
        "con-para": con_para,
        "cks": cks,
        "con-cks": con_cks,
        "cam": cam,
        "finetune": finetune,
    },
    typed=True,
    adopt=add_on,
)

parts = Catalogue(
    "algorithm or add-on",
    {**algorithms.entries, **add_ons.entries},
    hidden=algorithms.hidden,
    adopt=lambda function, name: function,
)
"""Everything that the text of an algorithm may be made of."""


def has_number(text: str) -> bool:
    """Return whether the algorithm that a text names has a number of clusters that could be given or found.

    >>> has_number("wecfl+cks"), has_number("fedavg")
    (True, False)
    """
    return "clusters" in algorithms.arguments(parse(text)[0].name)


def build_algorithm(
    text: str, clusters: int | str | None = None, fit: Fit = Fit(), choose: str | None = None
) -> Algorithm:
    """Build the algorithm that a text names, with its add-ons; the text overrides the other arguments.

    >>> build_algorithm("wecfl(shots=10) + cks(strength=0.1)", clusters=4).name
    'wecfl(shots=10)+cks(strength=0.1)'
    """
    return replace(spelled_out(text, clusters, fit, choose), name="+".join(map(str, parse(text))))


def spelled_out(text: str, clusters: int | str | None = None, fit: Fit = Fit(), choose: str | None = None) -> Algorithm:
    """Build the same algorithm, named by all that was given, in the text or beside it, without defaults.

    >>> spelled_out("wecfl(shots=10) + cks(0.2)", clusters=4).name
    'wecfl(clusters=4,shots=10)+cks(strength=0.2)'
    """
    options = {"fit": fit, "clusters": clusters, "choose": choose}
    given = {name: value for name, value in options.items() if value is not None}
    first, *rest = parse(text)
    check_most("the number of add-ons", len(rest), ADD_ONS, "leave some out")
    if first.name in add_ons:
        raise UsageError(f"{first.name} is an add-on and cannot stand alone; write 'wecfl+{first}'")
    if clusters == AUTO and not has_number(text):
        raise UsageError(
            f"clusters is {AUTO}, but {first.name} has no number of clusters to find; leave it out, "
            "and ask with --advise whether one model is enough"
        )
    if choose is not None and "choose" not in algorithms.arguments(first.name):
        one_of(*CHOICES)("choose", choose)  # others of a comparison may take it, so it must be one that they can
    algorithm: Algorithm = algorithms.build(first, **given)
    for call in rest:
        algorithm = add_ons.build(call)(algorithm)
    return algorithm
