"""Methods in which the server clusters the clients once by descriptions of their data."""

from __future__ import annotations

from dataclasses import replace

from coterie.algorithms.method import method
from coterie.algorithms.one_shot import clustered_after
from coterie.client_functions import FEWEST, HERE
from coterie.errors import UnknownName, require
from coterie.protocol.task import Fit
from coterie.server.clustering.clusterers import Clusterer, agglomerative, clusterers
from coterie.server.contract import Algorithm, Place, by_examples
from coterie.server.descriptions import (
    ANGLES,
    RIGHT,
    Descriptor,
    angles_between,
    cluster_described,
    differing,
    mean_moments,
    moments_apart,
    nearest_description,
    not_scaled,
    nowhere,
    ranges_of_moments,
)
from coterie.textforms import parse_one

SPACES = {"class": "class_bases", "all": "basis"}


@method
def given(column: str = "group", fit: Fit = Fit()) -> Algorithm:
    """Put clients with the same value of a known column in a cluster, and run FedAvg in each.

    c(i) = c(j) if and only if a_i = a_j: what applications do that know sites, devices or regions, and the baseline for
    all methods that find clusters. The column is an attribute of the clients' tables (``--attribute``), or ``group`` of
    a simulated partition: its true groups, an oracle. A client sends a code of its value; one without a value, or with
    a value that nobody had, joins the cluster of least loss. It fails where the column says nothing about the data:
    every cluster has fewer examples than all together, and no cluster learns from another.
    """
    function = f"{HERE}:attribute({column})"
    plain = parse_one(function).args == (column,)
    require(plain, "column", repr(column), "a word without , = ( ) that is no number: rename the column")
    by = Descriptor(function=function, compare=differing, far=1.0, advises=False, codes=True)
    return _described(by, agglomerative(cut=0.5, linkage="single"), fit)


@method
def pacfl(
    clusters: int | str = 2,
    clusterer: str | Clusterer = "agglomerative",
    p: int = 3,
    angle: str = "smallest",
    by: str = "class",
    fewest: int = FEWEST,
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster the clients before training by the principal angles between their data, and run FedAvg in each cluster.

    d(i, j) = mean over the classes c of both of the smallest angle between span(U_ic) and span(U_jc), in degrees, where
    U_ic are the first ``p`` left singular vectors of the matrix of i's examples of class c, one a column. Vahidian et
    al., "Efficient distribution similarity identification in clustered federated learning via principal angles between
    client data subspaces", AAAI 2023, eq. 2 class by class; ``angle=mean`` is after eq. 3. ``by=all``: one space for
    all classes, which needs no labels and cannot see that clients name things differently. Merged until ``clusters``
    are left, or by the paper's threshold: ``clusterer=agglomerative(cut=20)``. Fails where examples have few features,
    because two spaces of p dimensions meet if 2p > features, and where groups differ but not in directions.
    """
    if by not in SPACES:
        raise UnknownName("space", by, tuple(SPACES))
    if angle not in ANGLES:
        raise UnknownName("angle", angle, ANGLES)
    require(p >= 1, "p", p, "at least 1")
    check_fewest(fewest)
    how = Descriptor(function=f"{HERE}:{SPACES[by]}({p},{fewest})", compare=angles_between(angle), far=RIGHT)
    unlabelled = nearest_description(how, otherwise=nowhere) if by == "all" else None
    return _described(how, clusterers.build(clusterer, clusters=clusters), fit, unlabelled=unlabelled)


@method
def flux(
    clusterer: str | Clusterer = "dbscan(eps=elbow,factor=1.5)",
    warmup: int = 2,
    dims: int = 10,
    scale: bool = False,
    fewest: int = FEWEST,
    fit: Fit = Fit(),
) -> Algorithm:
    """Cluster the clients once by moments of their latent features, and place newcomers that have no labels.

    phi_i = (mean z, deviation z) over all examples of i and over those of each class, z(x) the inputs of the last layer
    of the model after ``warmup`` rounds of FedAvg along ``dims`` directions; d(i, j)^2 = mean of |phi_ig - phi_jg|^2
    over the groups g that both have. A newcomer without labels joins the cluster nearest to it in the group of all
    examples. Fenoglio et al., "FLUX", NeurIPS 2025; their ``scale`` divides each moment by its range over the clients,
    and their eps has factor 1. It fails for newcomers where groups differ only in what they call things, and for all
    where the model's features have forgotten how the groups differ.
    """
    require(dims >= 1, "dims", dims, "at least 1")
    check_fewest(fewest)
    by = Descriptor(
        function=f"{HERE}:class_moments({dims},{fewest})",
        compare=moments_apart,
        scale=ranges_of_moments if scale else not_scaled,
        centre=mean_moments,
    )
    inputs = Descriptor(function=f"{HERE}:moments({dims},{fewest})", compare=moments_apart)
    unlabelled = nearest_description(inputs, slice(1), nowhere)
    return _described(by, clusterers.build(clusterer), fit, warmup=warmup, unlabelled=unlabelled)


def check_fewest(fewest: int) -> None:
    """Refuse descriptions of single examples, which would leave the client as they are."""
    require(fewest >= FEWEST, "fewest", fewest, f"at least {FEWEST} examples of a class")


def _described(
    by: Descriptor, clusterer: Clusterer, fit: Fit, *, warmup: int = 0, unlabelled: Place | None = None
) -> Algorithm:
    """Train one model for ``warmup`` rounds, cluster by descriptions, and train a model for each cluster."""
    rule = cluster_described(by, clusterer, by_examples)
    made = clustered_after(warmup, rule, clusterer, fit, nearest_description(by))
    return replace(made, place_unlabelled=unlabelled)
