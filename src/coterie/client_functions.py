"""Client functions that come with coterie: arrays that clients may be asked for beside models, losses and scores.

Each is a summary of a client's train data that leaves the client as it is, so a site of a federation gives it only if
its policy lists the function. A method of your own may bring others: see ``coterie.client_function``.
"""

from __future__ import annotations

import numpy as np

from coterie.errors import UsageError
from coterie.protocol.client_function import ClientData, client_function
from coterie.typing import Array


@client_function("classes")
def label_counts(client: ClientData) -> Array:
    """Return how many train examples a client has of each class."""
    if client.y.ndim > 1:
        raise UsageError("label_counts counts classes, and an example here has several labels; use another function")
    return np.bincount(client.y, minlength=client.classes or 0)
