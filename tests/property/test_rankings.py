"""The metrics of the catalogue are scikit-learn's, whatever the outputs, ties, classes and rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn import metrics as reference

from coterie.engine.metrics import (
    accuracy,
    average_precision,
    balanced_accuracy,
    brier,
    calibration_error,
    find_metric,
    log_loss,
    mae,
    r2,
    rmse,
)
from coterie.engine.metrics import auroc as area
from coterie.experiments.scores import metric_mean


def case(seed, rows, classes, ties):
    """Random outputs, many of them equal if there are to be ties, and classes of which some may be absent."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(rows, classes)) * 3
    outputs = outputs[rng.integers(0, rows, rows)] if ties else outputs
    return outputs, rng.integers(0, rng.integers(1, classes + 1), rows)


cases = st.builds(case, st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 5), st.booleans())


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
def test_classes_count_by_their_support_where_that_is_asked_for(pair):
    outputs, y = pair
    present = [k for k in range(outputs.shape[1]) if 0 < (y == k).sum() < len(y)]
    if outputs.shape[1] == 2 or not present:
        return
    chances, truth = softmax(outputs, axis=1)[:, present], y[:, None] == np.array(present)
    for ours, theirs in ((area, reference.roc_auc_score), (average_precision, reference.average_precision_score)):
        for average, name in (("support", "weighted"), ("macro", "macro")):
            expected = theirs(truth, chances, average=name)
            assert ours(outputs, y, average=average) == pytest.approx(expected)


@given(st.integers(0, 2**32 - 1), st.integers(3, 5))
def test_of_several_classes_that_all_occur_it_is_one_against_the_rest(seed, classes):
    rng = np.random.default_rng(seed)
    outputs, y = rng.normal(size=(30, classes)), np.arange(30) % classes
    for average, name in (("macro", "macro"), ("support", "weighted")):
        expected = reference.roc_auc_score(y, softmax(outputs, axis=1), multi_class="ovr", average=name)
        assert area(outputs, y, average=average) == pytest.approx(expected)


@given(cases)
def test_brier_and_accuracies_are_those_of_scikit_learn(pair):
    outputs, y = pair
    chances, said = softmax(outputs, axis=1), outputs.argmax(axis=1)
    labels = range(outputs.shape[1])
    given = chances[:, 1] if len(labels) == 2 else chances
    options = {"pos_label": 1} if len(labels) == 2 else {"labels": labels}
    assert brier(outputs, y) == pytest.approx(reference.brier_score_loss(y, given, **options))
    assert accuracy(outputs, y) == pytest.approx(reference.accuracy_score(y, said))
    recalls = reference.recall_score(y, said, labels=np.unique(y), average="macro", zero_division=0)
    assert balanced_accuracy(outputs, y) == pytest.approx(recalls)


@given(cases, st.integers(1, 30))
def test_calibration_error_is_the_mean_gap_over_any_number_of_bins(pair, bins):
    outputs, y = pair
    chances = softmax(outputs, axis=1)
    sure, right = chances.max(axis=1), outputs.argmax(axis=1) == y
    places = np.minimum(np.floor(sure * bins), bins - 1)
    gaps = [(places == k).mean() * abs(right[places == k].mean() - sure[places == k].mean()) for k in np.unique(places)]
    assert calibration_error(outputs, y, bins=bins) == pytest.approx(sum(gaps), abs=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from([None, 1, 3]))
def test_errors_of_numbers_are_those_of_scikit_learn(seed, rows, columns):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=rows if columns is None else (rows, columns))
    outputs = rng.normal(size=(rows, columns or 1))
    said = outputs.reshape(y.shape)
    assert mae(outputs, y) == pytest.approx(reference.mean_absolute_error(y, said))
    assert rmse(outputs, y) == pytest.approx(reference.mean_squared_error(y, said) ** 0.5)
    if rows > 1:
        assert r2(outputs, y) == pytest.approx(reference.r2_score(y, said, multioutput="variance_weighted"))
    else:
        assert math.isnan(r2(outputs, y))


@given(st.floats(-1e6, 1e6, width=32), st.integers(1, 200))
def test_r2_of_targets_that_are_all_the_same_is_undefined_however_their_mean_is_rounded(value, count):
    y = np.full(count, value, np.float32)
    assert math.isnan(r2(np.zeros((count, 1), np.float32), y))


@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_a_mean_over_clients_by_examples_is_that_of_all_examples_together(seed, clients):
    """Accuracy, log loss and Brier are means over examples; weighted by examples they are those of the pool."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 30, clients)
    outputs, y = rng.normal(size=(sizes.sum(), 3)), rng.integers(0, 3, sizes.sum())
    parts = [np.split(each, np.cumsum(sizes)[:-1]) for each in (outputs, y)]
    for ours in (accuracy, log_loss, brier):
        own = np.array([ours(*each) for each in zip(*parts, strict=True)])
        assert metric_mean(own, sizes) == pytest.approx(ours(outputs, y))


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
