"""The metrics of rankings and probabilities are scikit-learn's, whatever the outputs, ties and classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn import metrics as reference

from coterie.engine.metric_functions import auroc as area
from coterie.engine.metric_functions import average_precision, find_metric, log_loss


def case(seed, rows, classes, ties):
    """Random outputs, many of them equal if there are to be ties, and classes of which some may be absent."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(rows, classes)) * 3
    outputs = outputs[rng.integers(0, rows, rows)] if ties else outputs
    return outputs, rng.integers(0, rng.integers(1, classes + 1), rows)


cases = st.builds(case, st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(2, 5), st.booleans())


def one_against_rest(score, outputs, y):
    """The mean of a score over classes that some rows have and others have not, one by one, by scikit-learn."""
    chances = softmax(outputs, axis=1)
    classes = [1] if outputs.shape[1] == 2 else range(outputs.shape[1])
    found = [score(y == k, chances[:, k]) for k in classes if 0 < (y == k).sum() < len(y)]
    return np.mean(found) if found else math.nan


@given(cases)
def test_auroc_is_that_of_scikit_learn(pair):
    outputs, y = pair
    assert area(outputs, y) == pytest.approx(one_against_rest(reference.roc_auc_score, outputs, y), nan_ok=True)


@given(cases)
def test_average_precision_is_that_of_scikit_learn(pair):
    outputs, y = pair
    expected = one_against_rest(reference.average_precision_score, outputs, y)
    assert average_precision(outputs, y) == pytest.approx(expected, nan_ok=True)


@given(cases)
def test_log_loss_is_that_of_scikit_learn(pair):
    outputs, y = pair
    expected = reference.log_loss(y, softmax(outputs, axis=1), labels=range(outputs.shape[1]))
    assert log_loss(outputs, y) == pytest.approx(expected)


@given(st.integers(0, 2**32 - 1), st.integers(4, 40), st.integers(2, 4))
def test_several_labels_are_ranked_each(seed, rows, labels):
    rng = np.random.default_rng(seed)
    outputs, y = rng.normal(size=(rows, labels)), rng.integers(0, 2, (rows, labels)).astype(np.float32)
    both = [k for k in range(labels) if 0 < y[:, k].sum() < rows]
    for ours, score in ((area, reference.roc_auc_score), (average_precision, reference.average_precision_score)):
        expected = np.mean([score(y[:, k], outputs[:, k]) for k in both]) if both else math.nan
        assert ours(outputs, y) == pytest.approx(expected, nan_ok=True)
    losses = [reference.log_loss(y[:, k], expit(outputs[:, k]), labels=[0, 1]) for k in range(labels)]
    assert log_loss(outputs, y) == pytest.approx(np.mean(losses))


def test_far_outputs_are_still_ranked_where_probabilities_are_all_the_same():
    outputs = np.array([[0.0, 800.0], [0.0, 900.0], [0.0, 850.0]])
    assert area(outputs, np.array([0, 1, 1])) == 1.0
    assert area(np.array([[0.0, -np.inf], [0.0, 3.0]]), np.array([0, 1])) == 1.0


def test_one_class_and_outputs_that_are_no_numbers_are_undefined():
    for name in ("auroc", "average_precision"):
        metric, call = find_metric(name)
        assert metric.of(np.zeros((3, 2)), np.array([1, 1, 1]), call) == math.inf
        assert metric.of(np.array([[0.0, np.nan], [0.0, 1.0]]), np.array([0, 1]), call) == math.inf
