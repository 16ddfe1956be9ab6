"""Networks that a run hands over: rows of its models become torch modules in evaluation mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from coterie.models.combined import Mixture
from coterie.models.model import Model
from coterie.protocol.stack import UNPLACED
from coterie.server.contract import State
from coterie.server.serving import Served, rows_that_serve


def network_of(model: Model, served: Sequence[Served], at: int, mix: str | None) -> nn.Module:
    """Return the network that serves the client at a position; ``mix`` is how the outputs of an ensemble become one."""
    rows = [(member.models, member.rows[at]) for member in served]
    first, *others = (model.with_row(stack.params[row], stack.buffers[row]) for stack, row in rows)
    return first if mix is None else Mixture([first, *others], mix, model.target)


def mean_network(model: Model, state: State, mix: str | None) -> nn.Module:
    """Return the network of a client without a cluster: the mean of the cluster models by their shares."""
    nobody = np.array([UNPLACED])
    members = tuple(replace(member, labels=nobody, memberships=None) for member in state.members)
    stack, rows = rows_that_serve(replace(state, labels=nobody, memberships=None, members=members))
    return network_of(model, [Served(stack, column) for column in np.atleast_2d(rows.T)], 0, mix)
