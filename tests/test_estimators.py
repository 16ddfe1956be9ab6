"""The estimators: scikit-learn's own checks, and what groups mean when fitting, predicting and cross-validating."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import coterie as ct
from coterie.errors import EstimatorError, UnknownName, UsageError

NAMES = ("bern", "chur", "genf", "zug")
TURNED = ("chur", "zug")
"""The groups in which the sign of the first column means the contrary."""


def rows(seed=0, each=60, names=NAMES):
    rng = np.random.default_rng(seed)
    groups = np.repeat(names, each)
    X = rng.normal(size=(len(groups), 3)) * [1, 10, 1000] + [0, 5, -2000]
    sign = np.where(np.isin(groups, TURNED), -1, 1)
    return X, sign * X[:, 0], groups


def classified(**options):
    X, target, groups = rows(**options)
    return X, np.where(target > 0, "ill", "well"), groups


def classifier(**options):
    return ct.ClusteredClassifier(clusters=2, rounds=6, **options)


@pytest.fixture(scope="module")
def fitted():
    X, y, groups = classified()
    return classifier().fit(X, y, groups=groups)


@pytest.fixture
def routed():
    with config_context(enable_metadata_routing=True):
        yield


@parametrize_with_checks([ct.ClusteredClassifier(rounds=4), ct.ClusteredRegressor(rounds=4)])
def test_scikit_learns_own_checks_pass(estimator, check):
    """Without an exception; pandas and the array API are skipped where they are not installed."""
    check(estimator)


def test_groups_that_belong_together_share_a_cluster_and_are_served_by_it(fitted):
    X, y, groups = classified(seed=1)
    assert fitted.groups_.tolist() == list(NAMES)
    assert fitted.labels_[0] == fitted.labels_[2] != fitted.labels_[1] == fitted.labels_[3]
    assert fitted.score(X, y, groups=groups) > 0.9
    assert fitted.score(X, y, groups=np.where(np.isin(groups, TURNED), "bern", "zug")) < 0.1, "of the other cluster"
    assert fitted.classes_.tolist() == ["ill", "well"]
    assert np.allclose(fitted.predict_proba(X, groups=groups).sum(axis=1), 1)


def test_a_regressor_predicts_in_the_units_of_its_targets():
    X, target, groups = rows()
    far = ct.ClusteredRegressor(clusters=2, rounds=12, lr=0.02).fit(X, 1e6 + 1e3 * target, groups=groups)
    assert far.score(X, 1e6 + 1e3 * target, groups=groups) > 0.9
    near = ct.ClusteredRegressor(clusters=2, rounds=12, lr=0.02).fit(X, target, groups=groups)
    left, right = far.predict(X, groups=groups), 1e6 + 1e3 * near.predict(X, groups=groups)
    assert np.allclose(left, right, atol=1)


def test_every_row_is_trained_on_and_the_run_says_what_its_scores_are(fitted):
    assert fitted.run_.data.train.sizes.tolist() == [60] * 4
    assert any("training scores" in note for note in fitted.run_.data.notes)
    X, y, groups = classified()
    assert fitted.run_.summary["accuracy"] == pytest.approx(fitted.score(X, y, groups=groups))


def test_rows_of_all_groups_may_come_in_any_order():
    X, y, groups = classified()
    order = np.random.default_rng(3).permutation(len(X))
    X, y, groups = X[order], y[order], groups[order]
    mixed = classifier().fit(X, y, groups=groups)
    assert mixed.score(X, y, groups=groups) > 0.9
    for i, name in enumerate(NAMES):
        own, labels = mixed.run_.data.train.of(i)
        assert np.array_equal(own, mixed.scaling_.apply(X[groups == name]))
        assert np.array_equal(mixed.classes_[labels], y[groups == name])


def test_columns_are_standardised_as_the_rows_of_all_groups_together():
    X, y, groups = classified()
    scaling = classifier().fit(X, y, groups=groups).scaling_
    assert np.allclose(scaling.mean, X.mean(axis=0))
    assert np.allclose(scaling.std, X.std(axis=0))
    moved = classifier().fit(X * 7 - 3, y, groups=groups)
    assert np.allclose(
        moved.predict_proba(X * 7 - 3, groups=groups),
        classifier().fit(X, y, groups=groups).predict_proba(X, groups=groups),
        atol=1e-3,
    )


def test_a_number_that_cannot_be_scaled_is_named(fitted):
    X, _, groups = classified()
    X[3, 1] = 1e300
    with pytest.raises(EstimatorError, match=r"column 1 has the number 1e[+]300 in row 3.* too large"):
        fitted.predict(X, groups=groups)


def test_a_group_of_one_row_is_a_client_like_any_other():
    X, y, groups = classified()
    keep = np.r_[0:121, 180:240]
    few = classifier().fit(X[keep], y[keep], groups=groups[keep])
    assert few.run_.data.train.sizes.tolist() == [60, 60, 1, 60]
    assert len(few.predict(X[120:121], groups=["genf"])) == 1


def test_rows_without_groups_train_a_plain_model():
    X, y, _ = classified(names=("bern",))
    plain = ct.ClusteredClassifier(clusters=3, rounds=6).fit(X, y)
    assert plain.groups_.tolist() == ["all"]
    assert plain.labels_.tolist() == [0]
    assert plain.score(X, y) > 0.9
    assert np.array_equal(plain.predict(X), plain.predict(X, groups=["anybody"] * len(X)))


def test_groups_may_be_numbers():
    X, y, groups = classified()
    numbers = np.searchsorted(NAMES, groups) + 9
    by_number = classifier().fit(X, y, groups=numbers)
    assert by_number.groups_.tolist() == [9, 10, 11, 12]
    assert by_number.run_.data.names == ("9", "10", "11", "12")
    assert by_number.score(X, y, groups=numbers) > 0.9


def test_a_group_that_fit_has_not_seen_gets_the_mean_of_the_models(fitted):
    X, _, _ = classified()
    new = fitted.predict_proba(X, groups=["basel"] * len(X))
    assert np.array_equal(new, fitted.predict_proba(X)), "rows without groups are of no group that was seen"
    network, inputs = fitted.run_.mean_model(), torch.from_numpy(fitted.scaling_.apply(X))
    with torch.no_grad():
        assert np.allclose(new, torch.softmax(network(inputs), -1).numpy(), atol=1e-5)
    state = fitted.run_.state
    mean = state.shares @ state.stack.params / state.shares.sum()
    assert np.allclose(torch.nn.utils.parameters_to_vector(network.parameters()).detach(), mean, atol=1e-6)


def test_a_group_that_is_called_all_is_a_group_like_any_other():
    X, y, groups = classified()
    one = classifier().fit(X, y, groups=np.where(groups == "bern", "all", groups))
    nobody = one.predict_proba(X)
    assert np.array_equal(nobody, one.predict_proba(X, groups=["basel"] * len(X)))
    assert not np.array_equal(nobody, one.predict_proba(X, groups=["all"] * len(X)))


@pytest.mark.parametrize("algorithm", ["wecfl", "ifca", "local", "fedavg", "wecfl+finetune", "vote", "fedavg-ensemble"])
def test_every_kind_of_method_predicts_places_and_pickles(algorithm):
    X, y, groups = classified(each=20)
    one = ct.ClusteredClassifier(algorithm, clusters=2, rounds=3, unseen="mean").fit(X, y, groups=groups)
    one.place(X[:20], y[:20], groups=["basel"] * 20)
    again = pickle.loads(pickle.dumps(one))
    for names in (groups, ["basel"] * len(X), None):
        assert np.array_equal(one.predict_proba(X, groups=names), again.predict_proba(X, groups=names))


@pytest.mark.parametrize(("like", "other"), [("bern", "zug"), ("zug", "bern")])
def test_a_group_is_placed_by_its_labelled_rows(like, other):
    X, y, groups = classified()
    one = classifier(unseen="place").fit(X, y, groups=groups)
    with pytest.raises(EstimatorError, match=r"group 'basel' was not in fit; place\(X, y, groups\) it"):
        one.predict(X[:2], groups=["basel"] * 2)
    labelled = groups == like
    one.place(X[labelled][:30], y[labelled][:30], groups=["basel"] * 30)
    assert one.placed_ == {"basel": one.labels_[NAMES.index(like)]}
    assert one.score(X[labelled], y[labelled], groups=["basel"] * 60) > 0.9
    assert one.score(X[groups == other], y[groups == other], groups=["basel"] * 60) < 0.1
    with pytest.raises(EstimatorError, match="group 'bern' was in fit and has a cluster"):
        one.place(X[:2], y[:2], groups=["bern"] * 2)
    with pytest.raises(EstimatorError, match="the class 'odd', which fit has not seen"):
        one.place(X[:2], ["odd", "ill"], groups=["basel"] * 2)
    with pytest.raises(EstimatorError, match="name the new group of every row"):
        one.place(X[:2], y[:2], groups=None)
    assert one.fit(X, y, groups=groups).placed_ == {}, "a new fit has placed nobody"


def test_a_method_that_needs_no_labels_places_unseen_groups_by_the_rows_to_predict():
    """Groups whose columns lie elsewhere: what is left of zero in some is right of it in others."""
    rng = np.random.default_rng(0)
    names = np.repeat([f"g{i}" for i in range(10)], 60)
    shifted = np.repeat(np.arange(10) % 2, 60)
    X = rng.normal(size=(600, 3)) + 6 * shifted[:, None]
    y = ((X[:, 0] > 6 * shifted) ^ (shifted == 1)).astype(int)
    seen = ~np.isin(names, ["g8", "g9"])
    one = ct.ClusteredClassifier("flux(warmup=0)", model="mlp(16)", rounds=20, unseen="place")
    one.fit(X[seen], y[seen], groups=names[seen])
    assert len(set(one.labels_)) == 2
    for name in ("g8", "g9"):
        rows = names == name
        assert one.score(X[rows], y[rows], groups=names[rows]) > 0.85
    other = ct.ClusteredClassifier("wecfl", rounds=2, unseen="place").fit(X[seen], y[seen], groups=names[seen])
    with pytest.raises(EstimatorError, match="use a method that places without labels, such as flux"):
        other.predict(X[~seen], groups=names[~seen])


def test_unseen_groups_can_be_an_error():
    X, y, groups = classified()
    one = classifier(unseen="error").fit(X, y, groups=groups)
    one.place(X[:9], y[:9], groups=["basel"] * 9)
    with pytest.raises(EstimatorError, match="group 'basel' was not in fit; leave its rows out, or use unseen='mean'"):
        one.predict(X[:2], groups=["basel"] * 2)
    with pytest.raises(EstimatorError, match="rows come without groups, which were not in fit"):
        one.predict(X[:2])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["bern"] * 3, "inconsistent numbers of samples"),
        ([None, *["bern"] * 239], "row 0, counted from 0, has no group"),
        ([*[1.0] * 239, np.nan], "row 239, counted from 0, has no group"),
        (np.array(["bern", 1] * 120, object), "groups are of several kinds"),
    ],
)
def test_groups_that_cannot_be_used_are_refused(groups, message):
    X, y, _ = classified()
    with pytest.raises(ValueError, match=message):
        classifier().fit(X, y, groups=groups)


def test_parameters_that_cannot_be_used_are_refused_by_name():
    X, y, groups = classified()
    with pytest.raises(UnknownName, match="unknown algorithm 'wecf'; did you mean 'wecfl'"):
        ct.ClusteredClassifier("wecf").fit(X, y, groups=groups)
    with pytest.raises(UnknownName, match="unknown value of unseen 'means'; did you mean 'mean'"):
        classifier(unseen="means").fit(X, y, groups=groups)
    with pytest.raises(UsageError, match="clusters is 9 for 4 clients"):
        ct.ClusteredClassifier(clusters=9).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="y has one class"):
        classifier().fit(X, ["ill"] * len(X), groups=groups)


def test_the_seed_decides_and_none_draws_one():
    X, y, groups = classified(each=20)

    def outputs(seed):
        return classifier(random_state=seed).fit(X, y, groups=groups).predict_proba(X, groups=groups)

    assert np.array_equal(outputs(3), outputs(3))
    assert not np.array_equal(outputs(3), outputs(4))
    assert np.array_equal(outputs(np.random.RandomState(3)), outputs(np.random.RandomState(3)))
    assert not np.array_equal(outputs(None), outputs(None))


def test_a_clone_has_the_parameters_and_nothing_else(fitted):
    other = clone(fitted.set_params(clusters=2))
    assert other.get_params() == fitted.get_params()
    assert not hasattr(other, "run_")


def test_groups_reach_the_estimator_behind_a_column_transformer(routed):
    X, y, groups = classified()
    table = np.column_stack([X.astype(object), np.where(X[:, 1] > 5, "high", "low")])
    columns = ColumnTransformer([("numbers", StandardScaler(), [0, 1, 2]), ("words", OneHotEncoder(), [3])])
    request = classifier().set_fit_request(groups=True).set_predict_request(groups=True).set_score_request(groups=True)
    pipeline = make_pipeline(columns, request).fit(table, y, groups=groups)
    assert pipeline.score(table, y, groups=groups) > 0.9
    assert (pipeline.predict(table, groups=groups) == y).mean() > 0.9


def test_groups_are_routed_in_cross_validation(routed):
    X, y, groups = classified()
    one = classifier().set_fit_request(groups=True).set_score_request(groups=True)
    seen = cross_val_score(one, X, y, cv=StratifiedKFold(3, shuffle=True, random_state=0), params={"groups": groups})
    assert seen.min() > 0.85, "every group is in the train rows, and is served by its cluster"
    unseen = cross_val_score(one, X, y, cv=GroupKFold(4), params={"groups": groups})
    assert unseen.mean() < 0.85, "no fold has seen the group that it is tested on"
    search = GridSearchCV(one, {"clusters": [1, 2]}, cv=StratifiedKFold(3, shuffle=True, random_state=0))
    assert search.fit(X, y, groups=groups).best_params_ == {"clusters": 2}
