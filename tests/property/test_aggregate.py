"""What must hold of every aggregation, whatever the labels, weights and sizes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.models.layout import Layout
from coterie.protocol.replies import Replies
from coterie.protocol.stack import Stack
from coterie.server import aggregate
from coterie.server.aggregate import average, matrix, multiply

ROUNDING = 1e-9


class Case(NamedTuple):
    replies: Replies
    labels: np.ndarray
    weights: np.ndarray
    kept: Stack


@st.composite
def cases(draw) -> Case:
    """Up to 9 clients, some without a cluster, in up to 5 clusters, some of them empty."""
    clients, clusters = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    size, buffers = draw(st.integers(2, 6)), draw(st.integers(0, 3))
    labels = np.array(draw(st.lists(st.integers(-1, clusters - 1), min_size=clients, max_size=clients)))
    weights = np.array(draw(st.lists(st.integers(1, 10_000), min_size=clients, max_size=clients)), dtype=float)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    cut, buffer_cut = size // 2, buffers // 2
    layout = Layout(
        size,
        buffers,
        {"all": np.arange(size), "head": np.arange(cut, size), "odd": np.arange(0, size, 2)},
        {"all": np.arange(buffers), "head": np.arange(buffer_cut, buffers), "odd": np.arange(0, buffers, 2)},
    )
    sent = Stack(rng.normal(size=(clients, size)), rng.normal(size=(clients, buffers)))
    replies = Replies(layout, np.arange(clients), labels, weights.astype(int), *sent)
    return Case(
        replies, labels, weights, Stack(rng.normal(size=(clusters, size)), rng.normal(size=(clusters, buffers)))
    )


@given(cases())
def test_rows_of_the_matrix_sum_to_one_or_are_empty(case):
    A = matrix(case.labels, case.weights, len(case.kept)).toarray()
    filled = np.isin(np.arange(len(case.kept)), case.labels)
    np.testing.assert_allclose(A.sum(axis=1), filled.astype(float), atol=ROUNDING)
    assert (A >= 0).all()


@given(cases())
def test_a_client_without_a_cluster_counts_nowhere(case):
    A = matrix(case.labels, case.weights, len(case.kept)).toarray()
    assert not A[:, case.labels < 0].any()
    assert ((A > 0).sum(axis=0) == (case.labels >= 0)).all(), "and everybody else counts once"


@given(cases())
def test_a_mean_lies_between_its_members_and_is_theirs_alone(case):
    mean, _ = average(case.replies, case.labels, case.weights, case.kept)
    for rows, sent, kept in zip(mean, case.replies.models(), case.kept, strict=True):
        for k, row in enumerate(rows):
            members = sent[case.labels == k]
            if not len(members):
                assert np.array_equal(row, kept[k]), "an empty cluster keeps its model"
                continue
            assert (row >= members.min(axis=0) - ROUNDING).all()
            assert (row <= members.max(axis=0) + ROUNDING).all()
            np.testing.assert_allclose(
                row, np.average(members, axis=0, weights=case.weights[case.labels == k]), atol=ROUNDING
            )


@given(cases())
def test_clients_that_agree_are_averaged_to_what_they_agree_on(case):
    same = Stack(*(np.broadcast_to(rows[:1], rows.shape) for rows in case.replies.models()))
    replies = Replies(case.replies.layout, case.replies.clients, case.labels, case.replies.examples, *same)
    mean, _ = average(replies, case.labels, case.weights, case.kept)
    for k in np.unique(case.labels[case.labels >= 0]):
        np.testing.assert_allclose(mean.params[k], same.params[0], atol=ROUNDING)


@given(cases())
def test_shares_sum_to_one_and_give_back_the_mean_over_all(case):
    mean, shares = average(case.replies, case.labels, case.weights, case.kept)
    placed = case.labels >= 0
    assert shares.sum() == pytest.approx(1)
    if placed.any():
        everyone = np.average(case.replies.params[placed], axis=0, weights=case.weights[placed])
        np.testing.assert_allclose(shares @ mean.params, everyone, atol=ROUNDING)


@pytest.mark.parametrize("part", ["head", "odd", "all"])
@given(case=cases())
def test_the_shared_part_is_the_weighted_mean_over_everyone_in_every_row(part, case):
    layout = case.replies.layout
    plain, _ = average(case.replies, case.labels, case.weights, case.kept)
    mean, _ = average(case.replies, case.labels, case.weights, case.kept, shared=part)
    for rows, untouched, sent, place in zip(
        mean, plain, case.replies.models(), (layout.part(part), layout.buffer_part(part)), strict=True
    ):
        wanted = np.average(sent, axis=0, weights=case.weights)[place]
        np.testing.assert_allclose(rows[:, place], np.broadcast_to(wanted, rows[:, place].shape), atol=ROUNDING)
        np.testing.assert_array_equal(np.delete(rows, place, axis=1), np.delete(untouched, place, axis=1))


@given(cases(), st.integers(1, 400))
@settings(max_examples=50)
def test_reading_in_chunks_changes_nothing(case, chunk):
    A = matrix(case.labels, case.weights, len(case.kept))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregate, "CHUNK_BYTES", chunk)
        found = multiply(A, case.replies.params, case.kept.params)
    dense = A.toarray() @ case.replies.params
    empty = ~np.isin(np.arange(len(case.kept)), case.labels)
    dense[empty] = case.kept.params[empty]
    np.testing.assert_allclose(found, dense, atol=ROUNDING)


@given(cases(), st.integers(1, 400))
@settings(max_examples=50)
def test_blocks_of_columns_change_no_bit(case, block):
    A = matrix(case.labels, case.weights, len(case.kept))
    whole = A @ case.replies.params.astype(np.float64)
    placed = np.isin(np.arange(len(case.kept)), case.labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregate, "BLOCK_BYTES", block)
        found = multiply(A, case.replies.params, case.kept.params)
    np.testing.assert_array_equal(found[placed], whole.astype(found.dtype)[placed])


@given(cases(), st.permutations(range(9)))
def test_the_order_of_the_clients_does_not_matter(case, order):
    order = [i for i in order if i < len(case.labels)]
    r = case.replies
    shuffled = Replies(r.layout, r.clients, r.rows[order], r.examples[order], *r.models().take(order))
    one, _ = average(r, case.labels, case.weights, case.kept)
    other, _ = average(shuffled, case.labels[order], case.weights[order], case.kept)
    np.testing.assert_allclose(one.params, other.params, atol=ROUNDING)


@given(cases())
def test_single_precision_is_kept_but_summed_in_double(case):
    kept = Stack(*(part.astype(np.float32) for part in case.kept))
    mean, _ = average(case.replies, case.labels, case.weights, kept)
    assert mean.params.dtype == np.float32
    double, _ = average(case.replies, case.labels, case.weights, case.kept)
    filled = np.unique(case.labels[case.labels >= 0])
    assert np.array_equal(mean.params[filled], double.params[filled].astype(np.float32))
