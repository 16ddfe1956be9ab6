"""A classifier and a regressor that cluster the groups of their rows, as estimators of scikit-learn.

scikit-learn knows its estimators by inheritance: ``get_params``, ``clone``, tags and the routing of ``groups`` are
methods of ``BaseEstimator``. This is the one place where coterie subclasses what others wrote.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import nn

from coterie.algorithms import fedavg
from coterie.algorithms.registry import has_number, spelled_out
from coterie.api.run import run
from coterie.errors import EstimatorError, UnknownName
from coterie.estimators.packed_run import PackedRun
from coterie.estimators.rows import as_clients, distinct_groups, group_names, rows_by_group
from coterie.estimators.scaling import Scaling
from coterie.protocol.task import Fit
from coterie.server.contract import Algorithm
from coterie.typing import Array

UNSEEN = ("mean", "place", "error")


class _Clustered(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What the classifier and the regressor share: parameters, training, and the network that serves each row."""

    def __init__(
        self,
        algorithm: str = "wecfl",
        clusters: int | str | None = 2,
        *,
        model: str | None = None,
        rounds: int = 20,
        steps: int | None = None,
        epochs: int | None = None,
        batch: int = 32,
        lr: float | None = None,
        momentum: float = 0.9,
        optimizer: str = "sgd",
        weight_decay: float = 0.0,
        unseen: str = "mean",
        random_state: Any = 1,
        n_jobs: int | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.clusters = clusters
        self.model = model
        self.rounds = rounds
        self.steps = steps
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.momentum = momentum
        self.optimizer = optimizer
        self.weight_decay = weight_decay
        self.unseen = unseen
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _train(self, X: Array, y: Array, groups: Any, *, classes: int | None, unit: float) -> Self:
        """Train on checked rows, and labels that are class numbers or standardised targets."""
        if self.unseen not in UNSEEN:
            raise UnknownName("value of unseen", str(self.unseen), UNSEEN)
        self.groups_, owners = distinct_groups(groups, group_names(groups, X))
        self.scaling_ = Scaling.of(X, owners)
        names = tuple(map(str, self.groups_.tolist()))
        clients = as_clients(self.scaling_.apply(X), y, owners, names, classes=classes, unit=unit)
        self.run_ = run(
            self._method(len(names)),
            clients,
            self.model,
            self.rounds,
            self._seed(),
            eval_every=max(1, self.rounds),
            threads=None if self.n_jobs == -1 else self.n_jobs or 1,
        )
        self.labels_, self._grouped = self.run_.labels, groups is not None
        self._newcomers: dict[str, tuple[Array, Array]] = {}
        self.placed_: dict[str, int] = {}
        return self

    def _method(self, groups: int) -> Algorithm:
        """Return the algorithm; a single group leaves nothing to cluster, and trains a plain model."""
        names = ("steps", "epochs", "batch", "lr", "momentum", "optimizer", "weight_decay")
        fit = Fit(**{name: getattr(self, name) for name in names})
        if groups == 1:
            return fedavg(fit=fit)
        return spelled_out(self.algorithm, self.clusters if has_number(self.algorithm) else None, fit)

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def place(self, X: Any, y: Any, groups: Any) -> Self:
        """Place groups that were not in ``fit`` in clusters, by these labelled rows, so that ``predict`` serves them.

        ``placed_`` has the cluster of each.
        """
        check_is_fitted(self)
        if groups is None:
            raise EstimatorError("groups is None; name the new group of every row")
        X, y = validate_data(self, X, y, reset=False, dtype=np.float64)
        scaled, labels = self.scaling_.apply(X), self._encoded(y)
        for name, rows in rows_by_group(group_names(groups, X)):
            if name in self.run_.data.names:
                raise EstimatorError(f"group {name!r} was in fit and has a cluster; leave it out")
            self._newcomers[name] = scaled[rows], labels[rows]
            self.placed_[name] = self.run_.assign(*self._newcomers[name]).cluster
        return self

    def _encoded(self, y: Array) -> Array:
        """Return labels as the model has them."""
        raise NotImplementedError

    def _outputs(self, X: Any, groups: Any) -> Array:
        """Return the outputs of the network that serves each row."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        known, nobody = self.run_.model, groups is None and self._grouped
        # Double precision makes a row's outputs independent of the rows beside it; users' networks may not have it.
        dtype = torch.float32 if known.is_users else torch.float64
        x = torch.from_numpy(self.scaling_.apply(X)).to(dtype)
        outputs = np.empty((len(X), known.classes or 1))
        for name, rows in rows_by_group(group_names(groups, X)):
            with torch.no_grad():
                network = self._network(None if nobody else name, x[rows])
                outputs[rows] = network.to(dtype)(x[rows]).numpy()
        return outputs

    def _network(self, name: str | None, x: torch.Tensor) -> nn.Module:
        """Return the network that serves a group with these rows, None for rows without one where fit had groups."""
        if name in self.run_.data.names:
            return self.run_.model_for(str(name))
        if self.unseen == "error":
            raise EstimatorError(f"{_group(name)} not in fit; leave its rows out, or use unseen='mean'")
        if name is not None and name in self.placed_:
            return self.run_.results.trained.network(*self._newcomers[name])
        if self.unseen == "mean":
            return self.run_.mean_model()
        if name is None or self.run_.algorithm.place_unlabelled is None:
            raise EstimatorError(
                f"{_group(name)} not in fit; place(X, y, groups) it by labelled rows, use a method that places without "
                "labels, such as flux, or unseen='mean'"
            )
        return self.run_.results.trained.network(x.numpy().astype(np.float32))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        return {**state, "run_": PackedRun.of(state["run_"])} if "run_" in state else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state.get("run_")
        super().__setstate__({**state, "run_": packed.unpacked()} if isinstance(packed, PackedRun) else state)


def _group(name: str | None) -> str:
    return "rows come without groups, which were" if name is None else f"group {name!r} was"


class ClusteredClassifier(ClassifierMixin, _Clustered):  # type: ignore[misc]
    """A classifier that clusters the groups of its rows and trains one network for each cluster.

    ``fit(X, y, groups)`` takes the group of every row, such as a hospital or a person; each is a client of a simulated
    federation, and all its rows are trained on. Without groups all rows are one client, and a plain model is trained.
    Columns are standardised by federated sums, so raw numbers will do.

    algorithm     an algorithm with its options and add-ons, as on the command line: ``wecfl(shots=10)+cks``
    clusters      their number, or ``auto``; not for algorithms that find it themselves
    model         a network of the catalogue or ``module:function``; None is a perceptron of one hidden layer
    rounds        rounds of training; in each a group takes ``steps`` minibatches of ``batch`` rows (10 by default) or
                  ``epochs`` passes over its rows, with ``lr``, ``momentum``, ``optimizer`` and ``weight_decay``
    unseen        for a group that was not in fit: ``mean``, the mean of the cluster models by their shares, unless it
                  was placed; ``place``, the cluster in which ``place`` put it, or that its rows show without
                  labels, if the method can tell; ``error``. Rows without groups are of no group in fit
    random_state  the seed; None draws one
    n_jobs        threads; None is one, -1 is all cores

    After ``fit``: ``classes_``, ``groups_``, ``labels_`` (the cluster of each group), ``run_`` (the ``Run``, with
    training scores), ``scaling_``, ``n_features_in_``, ``feature_names_in_``. A pickle holds the training rows.

    >>> rng = np.random.default_rng(0)
    >>> X, groups = rng.normal(size=(400, 2)), np.repeat(["bern", "chur", "genf", "zug"], 100)
    >>> y = np.where((X[:, 0] > 0) == np.isin(groups, ["bern", "genf"]), "ill", "well")  # the sign turns with the group
    >>> one = ClusteredClassifier(clusters=2).fit(X, y, groups=groups)
    >>> one.labels_[0] == one.labels_[2] != one.labels_[1] == one.labels_[3]
    np.True_
    >>> one.score(X, y, groups=groups) > 0.95
    True
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows, their labels, and the group of each."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise EstimatorError(f"y has one class, {self.classes_.tolist()[0]!r}; at least 2 are needed to tell apart")
        return self._train(X, numbers.astype(np.int64), groups, classes=len(self.classes_), unit=1.0)

    def predict(self, X: Any, groups: Any = None) -> Array:
        """Return the class of each row, by the model of its group's cluster."""
        outputs = self._outputs(X, groups)
        found: Array = self.classes_[outputs.argmax(axis=1)]
        return found

    def predict_proba(self, X: Any, groups: Any = None) -> Array:
        """Return the probability of each class, by the model of its group's cluster."""
        return torch.softmax(torch.from_numpy(self._outputs(X, groups)), -1).numpy()

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Return the accuracy on these rows."""
        return float(accuracy_score(y, self.predict(X, groups=groups), sample_weight=sample_weight))

    def _encoded(self, y: Array) -> Array:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise EstimatorError(f"y has the class {unknown.tolist()[0]!r}, which fit has not seen; leave its rows out")
        return np.searchsorted(self.classes_, y).astype(np.int64)


class ClusteredRegressor(RegressorMixin, _Clustered):  # type: ignore[misc]
    """A regressor that clusters the groups of its rows and trains one network for each cluster.

    Parameters and attributes are those of ``ClusteredClassifier``, without ``classes_``. Targets are standardised
    while training; predictions are in the units of ``y``.

    >>> rng = np.random.default_rng(0)
    >>> X, groups = rng.normal(size=(400, 2)), np.repeat(["bern", "chur", "genf", "zug"], 100)
    >>> y = 1000 + np.where(np.isin(groups, ["bern", "genf"]), 50, -50) * X[:, 0]
    >>> ClusteredRegressor(clusters=2, lr=0.02).fit(X, y, groups=groups).score(X, y, groups=groups) > 0.95
    True
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows, their targets, and the group of each."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = column_or_1d(y, warn=True).astype(np.float64)
        self.target_scaling_ = Scaling.of(y[:, None], distinct_groups(groups, group_names(groups, X))[1])
        return self._train(X, self._encoded(y), groups, classes=None, unit=float(self.target_scaling_.std[0]))

    def predict(self, X: Any, groups: Any = None) -> Array:
        """Return the predicted target of each row, by the model of its group's cluster."""
        outputs = self._outputs(X, groups)
        found: Array = (outputs * self.target_scaling_.std + self.target_scaling_.mean)[:, 0]
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Return the share of the variance that is explained on these rows, R²."""
        return float(r2_score(y, self.predict(X, groups=groups), sample_weight=sample_weight))

    def _encoded(self, y: Array) -> Array:
        return self.target_scaling_.apply(np.asarray(y, np.float64)[:, None])[:, 0]
