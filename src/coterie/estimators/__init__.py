"""Estimators with scikit-learn's habits: fit on rows with the group of each, predict, score, cross-validate."""

from coterie.estimators.estimator import ClusteredClassifier, ClusteredRegressor

__all__ = ["ClusteredClassifier", "ClusteredRegressor"]
