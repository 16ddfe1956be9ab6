"""The papers' own settings in one word: ``--as thesis``, or ``as = "thesis"`` in an experiment file.

A value of the paper is the default; one that the user gives stays. Only what a paper states is here. To add a value,
enter it in this module; no other knows of papers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.errors import UsageError
from coterie.experiments.presets import Argument, Preset, Said
from coterie.textforms import Catalogue

SHORT = "enough to see who leads, in minutes"
SAME_WORK = "10 steps cost every client the same, whatever its size"
NINE = "as the thesis has"
LUCK = "random starts may merge two groups for ever"
THESIS_NET = "cnn, the thesis', is less work"

_CNN, _LENET = {"model": Said("cnn", "tables A.1, A.4")}, {"model": Said("lenet", "table A.2")}
_PATH = {"model": Said("lenet", "table A.3", "the default goes by the size of images, here 28x28: cnn")}

THESIS = Preset(
    "thesis",
    {
        "rounds": Said(100, "section 3.5.2", SHORT),
        "clients": Said(200, "sections 3.5.2 and A.2"),
        "partition": Said("dirichlet(0.1,10)", "section A.2"),
        "clusters": Said(10, "tables 3.1 to 7.4"),
        "steps": Said(10, "section 3.5.2"),
        "batch": Said(32, "section 3.5.2"),
        "lr": Said(0.001, "section 3.5.2", "0.01: as momentum is reset here, 0.001 is too slow for 100 rounds"),
        "momentum": Said(0.9, "section 3.5.2"),
    },
    {
        "fashion-mnist": _CNN,
        "cifar-10": _LENET,
        "medmnist(pathmnist)": _PATH,
        "medmnist(tissuemnist)": _CNN,
    },
    (
        Argument(("ifca",), "start", Said("random", "algorithms 1 to 5", LUCK)),
        Argument(("fesem", "wecfl"), "layer", Said("linear", "section 3.5.2", "the public code has the last weight")),
        Argument(
            ("fesem", "wecfl"),
            "shots",
            Said(10, "sections 4.4.1.3, 5.4.1.3, 6.4.1.3", "algorithm 1 clusters in every round"),
            unless=("cam",),
        ),
        Argument(("con-cks",), "layer", Said("projection", "chapter 6, notation: the projection layers")),
        Argument(("cam",), "warmup", Said(30, "section 7.4.1", "whether it helps depends on start and partition")),
        Argument(("fedprox", "fedprox-ensemble"), "strength", Said(0.95, "section 3.5.2")),
        Argument(
            ("fedavg-ensemble", "fedprox-ensemble"),
            "members",
            Said(10, "section 3.5.2: K of them", "half the cost, and strong models err alike"),
        ),
    ),
    seeds=5,
)


def _table_1(rounds: int, participation: float, lr: float, epochs: int) -> dict[str, Said]:
    """Return a column of table I of the lcfl paper."""
    return {
        "rounds": Said(rounds, "table I", SHORT),
        "participation": Said(participation, "table I", "" if participation == 1 else "everyone learns every round"),
        "lr": Said(lr, "table I", "0.01 for all convolutions"),
        "epochs": Said(epochs, "table I", SAME_WORK),
    }


_LETTERS = {
    **_table_1(rounds=100, participation=0.3, lr=0.03, epochs=5),
    "classes": Said("a..j", "section V", "all classes"),
    "partition": Said("classes(3)", "section V", "dirichlet(0.1,10), with known true groups"),
    "clients": Said(200, "section V"),
}

LCFL = Preset(
    "lcfl",
    {
        "clusters": Said(10, "section V-B"),
        "batch": Said(20, "table I", "as the thesis and ocfl have"),
        "lr_decay": Said(0.99, "section V", "one thing less to tune"),
        "momentum": Said(0.0, "not said: SGD", NINE),
    },
    {
        "mnist": {
            **_table_1(rounds=60, participation=1.0, lr=0.02, epochs=10),
            "partition": Said("rotation(0,90,180,270)", "section V", "dirichlet(0.1,10), the thesis'"),
            "clients": Said(1200, "section V-A", "200 take a sixth of the time"),
            "model": Said("cnn-lcfl", "the authors' code", THESIS_NET),
        },
        "cifar-10": {
            **_table_1(rounds=200, participation=0.1, lr=0.02, epochs=5),
            "partition": Said("rotation(0,180)", "section V", "dirichlet(0.1,10), the thesis'"),
            "clients": Said(200, "section V"),
        },
        "emnist(byclass)": _LETTERS,
        "femnist": _LETTERS,
    },
    (
        Argument(
            ("lcfl", "diffnorm", "gradcos"),
            "warmup",
            Said(5, "tables II, III: FedAvg's row up to round 5", "clusters come sooner"),
        ),
        Argument(("lcfl",), "iterations", Said(10, "section V-B: T", "a round's own training costs nothing more")),
    ),
    seeds=5,
)

_FIG_2 = {
    "partition": Said("table", "fig. 2", "dirichlet(0.1,10), the thesis'"),
    "clients": Said(80, "section III-A", "200, as the thesis has"),
    "clusters": Said(4, "section III-A", "10, as the thesis has"),
}
_FIG_3 = {"model": Said("cnn-joint", "fig. 3", THESIS_NET)}

JOINT = Preset(
    "joint",
    {
        "steps": Said(1, "eq. 5", "10 steps learn more between two exchanges"),
        "momentum": Said(0.0, "eq. 5 has none", NINE),
    },
    {
        "mnist": {**_FIG_2, **_FIG_3},
        "fashion-mnist": {**_FIG_2, **_FIG_3},
        "cifar-10": {**_FIG_2, "model": Said("lenet", "fig. 3")},
        "emnist": {
            "partition": Said("classes(40,40,groups=8)", "section III-A", "dirichlet(0.1,10), the thesis'"),
            "clients": Said(200, "section III-A"),
            "clusters": Said(8, "section III-A", "10, as the thesis has"),
            "model": Said("cnn-joint(kernel=5)", "fig. 3", THESIS_NET),
        },
    },
    (
        Argument(("joint",), "strength", Said(0.2, "section III-B")),
        Argument(("joint",), "similarity", Said("cosine", "eq. 3")),
        Argument(("joint",), "total", Said(True, "eq. 1", "a sum over the minibatch drowns the gradient's part")),
        Argument(("joint",), "pinned", Said(True, "section II-C", "pinned clients may be in the wrong cluster")),
        Argument(("ifca",), "start", Said("random", "section II-B", LUCK)),
    ),
)

_VGG = {"model": Said("tiny-vgg", "section IV-B", THESIS_NET)}

OCFL = Preset(
    "ocfl",
    {
        "rounds": Said(50, "section IV-B", SHORT),
        "clients": Said(15, "section IV-A", "200, as the thesis has"),
        "partition": Said("blocks", "section IV-A", "dirichlet(0.1,10), the thesis'"),
        "clusters": Said(3, "section IV-A", "10, as the thesis has"),
        "epochs": Said(3, "section IV-B", SAME_WORK),
        "batch": Said(32, "section IV-B"),
        "lr": Said(0.01, "section IV-B"),
        "momentum": Said(0.0, "not said: SGD", NINE),
    },
    {
        "mnist": _VGG,
        "fashion-mnist": _VGG,
        "cifar-10": {
            "rounds": Said(80, "section IV-B", SHORT),
            "batch": Said(64, "section IV-B", "as elsewhere"),
            "model": Said("resnet34", "section IV-B", "lenet, the thesis', is far less work"),
        },
    },
    (
        Argument(
            ("ocfl", "ocfl-hdbscan", "ocfl-meanshift", "ocfl-affinity", "ocfl-kmeans"),
            "weights",
            Said("uniform", "algorithm 1, line 28", "as most means here"),
        ),
        Argument(("ocfl",), "p", Said(2.0, "eq. 2: the Frobenius norm")),
        Argument(
            ("ocfl-meanshift",),
            "bandwidth",
            Said("sklearn", "not said: the library's own", "the width of the clearest clusters finds the groups"),
        ),
        Argument(("sattler",), "eps1", Said(0.35, "section IV-B")),
        Argument(("sattler",), "eps2", Said(0.35, "section IV-B")),
        Argument(("sattler",), "relative", Said(False, "section IV-B", "absolute thresholds depend on rate and steps")),
        Argument(("sattler",), "least", Said(None, "not in the paper", "noise meets its conditions")),
        Argument(("briggs",), "metric", Said("cosine", "section IV-B")),
        Argument(("briggs",), "linkage", Said("average", "section IV-B")),
    ),
)


def thesis() -> Preset:
    """Ma, Clustered Federated Learning: 200 clients, 100 rounds of 10 steps, K = 10; cam warms up for 30 rounds.

    One setting for all chapters. Of its four partitions this is the cluster-wise Dirichlet one; it also has K = 5.
    Participation, weights of clients and whether momentum is kept are not said; strengths are chosen from several.
    """
    return THESIS


def lcfl() -> Preset:
    """Gu et al., LCFL: rotated MNIST on 1200 clients, rotated CIFAR-10, ten letters of EMNIST; k = 10.

    Momentum is not said, and the optimiser is called SGD, so it is 0. The net of CIFAR-10 and of the letters is not
    said, so it is our default; that of MNIST is the authors'. The letters are lower-case: emnist(byclass).
    """
    return LCFL


def joint() -> Preset:
    """Lin et al., joint gradient and loss: 80 devices in 4 clusters (EMNIST: 200 in 8), one step a round.

    Of its two kinds of networks these are the CNNs. Rounds, rate, batch and seeds are not said, and stay ours. For
    EMNIST the paper prints no counts, only that a cluster has 40 of 47 classes.
    """
    return JOINT


def ocfl() -> Preset:
    """Zuziak et al., one-shot clustered FL: 15 clients in three blocks of classes, 50 rounds of 3 epochs.

    Of its scenarios this is the balanced one without overlap; it also has 30 clients. Momentum is not said, and the
    optimiser is called SGD, so it is 0. The layers of its net for MNIST are not said.
    """
    return OCFL


papers = Catalogue("paper", {"thesis": thesis, "lcfl": lcfl, "joint": joint, "ocfl": ocfl})


AS = "as"
"""The key of an experiment file, and the flag, that names a paper."""

EITHER = ({"steps", "epochs"},)
"""Settings that exclude each other: where the user gives one, the paper's other does not count."""


def expand(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of settings with those of the paper that it names ``as``; values of the table stay.

    >>> expand({"as": "thesis", "algorithm": "ifca+cam", "data": "cifar-10"})["algorithm"]
    'ifca(start=random)+cam(warmup=30)'
    """
    said = {name: value for name, value in table.items() if name != AS}
    if AS not in table:
        return said
    preset = _paper(table[AS])
    taken = {name for one in EITHER if one & said.keys() for name in one} | said.keys()
    texts = {name: said[name] for name in ("data", "algorithm") if isinstance(said.get(name), str)}
    known = preset.settings_for(texts.get("data"))
    spelled = {"algorithm": preset.spell(texts["algorithm"])} if "algorithm" in texts else {}
    return {**{name: each.value for name, each in known.items() if name not in taken}, **said, **spelled}


def added_lines(table: Mapping[str, Any]) -> list[str]:
    """Return what a paper adds to a table of settings: a line of settings, and one of the algorithm.

    >>> added_lines({"as": "joint", "algorithm": "fedavg", "data": "cifar-10", "clients": 8, "partition": "table"})
    ['as joint: steps=1, momentum=0.0, clusters=4, model=lenet']
    """
    if AS not in table:
        return []
    preset, full = _paper(table[AS]), expand(table)
    added = [f"{name}={value}" for name, value in full.items() if name not in table]
    seeds = [f"{preset.seeds} seeds (compare with --seeds 1..{preset.seeds})"] if preset.seeds else []
    lines = [f"as {preset.name}: {', '.join([*added, *seeds])}"]
    before, after = table.get("algorithm"), full.get("algorithm")
    return lines if before == after else [*lines, f"as {preset.name}: {before} is {after}"]


def arguments_of(name: str) -> list[tuple[str, Argument]]:
    """Return the papers' values of the arguments of an algorithm or add-on, with the name of each paper."""
    presets = [papers.build(paper) for paper in papers]
    return [(preset.name, each) for preset in presets for each in preset.arguments if name in each.of]


def _paper(name: Any) -> Preset:
    if not isinstance(name, str):
        raise UsageError(f"as is {name!r}; it must be the name of a paper: {', '.join(papers)}")
    preset: Preset = papers.build(name)
    return preset
