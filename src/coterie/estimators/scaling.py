"""Scaling by federated sums, as tables have it: each group gives a count, a mean and a sum of squares per column."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from coterie.data.tables.sums import Moments, RunningMoments, merge_moments
from coterie.errors import EstimatorError
from coterie.typing import Array


@dataclass(frozen=True)
class Scaling:
    """The mean and the standard deviation of columns; the deviation of a constant column is 1."""

    mean: Array
    std: Array

    @classmethod
    def of(cls, values: Array, owners: Array) -> Scaling:
        """Return the scaling of rows, each with the number of its group.

        >>> Scaling.of(np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([0, 1]))
        Scaling(mean=array([2., 5.]), std=array([1., 1.]))
        """
        columns, clients = values.shape[1], int(owners.max()) + 1
        moments = RunningMoments(columns, clients)
        with np.errstate(over="ignore", invalid="ignore"):
            for column in range(columns):
                moments.add(column, owners, values[:, column])
            every = [
                reduce(merge_moments, (moments.of(column, client) for client in range(clients)), Moments())
                for column in range(columns)
            ]
        return cls(np.array([each.mean for each in every]), np.array([each.std for each in every]))

    def apply(self, values: Array) -> Array:
        """Return the values, standardised; refuse numbers too large for float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = ((values - self.mean) / self.std).astype(np.float32)
        bad = np.argwhere(~np.isfinite(scaled))
        if len(bad):
            row, column = bad[0].tolist()
            what = f"column {column} has the number {values[row, column]:g} in row {row}, counted from 0"
            raise EstimatorError(f"{what}, too large to be scaled to float32; rescale or clip it first")
        return scaled
