"""The estimators on three tables that come with scikit-learn, beside pooled models.

None of the tables has clients, so the groups are chosen here, in three ways that differ in what there is to find:

- cancer: the rows are dealt to 8 made-up hospitals, and half of them write the outcome the other way round;
- digits: the pictures are dealt to 8 made-up cameras, and half of them are turned by 90 degrees;
- diabetes: the groups are the patients' sex and age band, which are in the table; nobody says that they differ.

Linear models and boosting are trained on the pooled rows; "+ groups" is boosting with the group as one more column.
"one net" is the estimator with one cluster, which shows what clusters add: much where groups contradict each other
(cancer), nothing where one network can learn them all (digits) or where they do not differ (diabetes). Of each group,
30 % of the rows are held out; it is one split, in which differences of 0.02 mean nothing.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import coterie as ct

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Features, labels and the group of each row."""


def cancer() -> Rows:
    """Return rows of which half of the groups have the labels swapped."""
    X, y = load_breast_cancer(return_X_y=True)
    groups = np.random.default_rng(0).integers(8, size=len(y))
    return X, np.where(groups % 2, 1 - y, y), groups


def digits() -> Rows:
    """Return pictures of which half of the groups have them turned."""
    X, y = load_digits(return_X_y=True)
    groups = np.random.default_rng(0).integers(8, size=len(y))
    turned = np.rot90(X.reshape(-1, 8, 8), axes=(1, 2)).reshape(X.shape)
    return np.where(groups[:, None] % 2, turned, X), y, groups


def diabetes() -> Rows:
    """Return rows with the groups that the table itself has: sex, and four bands of age."""
    X, y = load_diabetes(return_X_y=True)
    age, sex = X[:, 0], X[:, 1] > 0
    return X, y, 4 * sex + np.searchsorted(np.quantile(age, [0.25, 0.5, 0.75]), age)


def scores(rows: Rows, linear: BaseEstimator, boosting: BaseEstimator, clustered: BaseEstimator) -> list[float]:
    """Return the held-out accuracy or R² of each model, in the order in which they are printed."""
    X, y, groups = rows
    train, test = train_test_split(np.arange(len(y)), test_size=0.3, stratify=groups, random_state=0)
    named = np.column_stack([X, groups])
    pooled = [model.fit(X[train], y[train]).score(X[test], y[test]) for model in (linear, boosting)]
    with_groups = boosting.fit(named[train], y[train]).score(named[test], y[test])
    nets = [
        net.fit(X[train], y[train], groups=groups[train]).score(X[test], y[test], groups=groups[test])
        for net in (clone(clustered).set_params(clusters=1), clustered)
    ]
    return [*pooled, with_groups, *nets]


def main() -> None:
    """Print a line for each table."""
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    trees, classifier = HistGradientBoostingClassifier(max_iter=30), ct.ClusteredClassifier(clusters=2, rounds=30)
    lines = {
        "cancer, swapped": scores(cancer(), logistic, trees, classifier),
        "digits, turned": scores(digits(), logistic, trees, classifier),
        "diabetes, as it is": scores(
            diabetes(), Ridge(), HistGradientBoostingRegressor(max_iter=30), ct.ClusteredRegressor(clusters=2, lr=0.01)
        ),
    }
    print(f"{'':20}" + "".join(f"{name:>11}" for name in ("linear", "boosting", "+ groups", "one net", "clustered")))
    for name, row in lines.items():
        print(f"{name:20}" + "".join(f"{score:11.2f}" for score in row))


if __name__ == "__main__":
    main()
