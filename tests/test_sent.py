"""What clients are sent: which row a label names, of models, references and the model for clients without a cluster."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.protocol.stack import UNPLACED, Sent, Stack


def rows(*values):
    return Stack(np.array(values, dtype=np.float32)[:, None], np.zeros((len(values), 0), np.float32))


def test_labels_name_models_then_references_and_unplaced_the_model_for_clients_without_a_cluster():
    sent = Sent(rows(1, 2), rows(10, 20, 30), rows(99))
    assert sent.take([0, 1, 2, 4, UNPLACED]).params[:, 0].tolist() == [1, 2, 10, 30, 99]
    assert sent.names_cluster(np.array([0, 1, 2, UNPLACED])).tolist() == [True, True, False, False]


def test_without_anything_beside_the_models_no_row_is_copied():
    models = rows(1, 2)
    assert Sent(models).rows is models
    assert Sent(models, rows()).rows is models


def test_a_client_without_a_cluster_needs_a_model():
    with pytest.raises(ValueError, match="send one as 'unplaced'"):
        Sent(rows(1, 2), rows(3)).take([UNPLACED])
    assert len(Sent(rows(1, 2)).take([])) == 0


def test_contiguous_arrays_hold_the_same_numbers():
    wide = Stack(np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2], np.zeros((3, 0), np.float32))
    found = Sent(wide, wide.take([0]), wide.take([1])).contiguous()
    for stack in (found.models, found.references, found.unplaced):
        assert stack.params.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(found.rows.params, Sent(wide, wide.take([0]), wide.take([1])).rows.params)
