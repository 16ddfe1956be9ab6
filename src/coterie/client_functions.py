"""Client functions that come with coterie: arrays that clients may be asked for beside models, losses and scores.

Each is a summary of a client's train data that leaves the client as it is, so a site of a federation gives it only if
its policy lists the function. A method of your own may bring others: see ``coterie.client_function``.
"""

from __future__ import annotations

import numpy as np

from coterie.protocol.client_function import ClientData, client_function
from coterie.typing import Array


@client_function("classes")
def label_counts(client: ClientData) -> Array:
    """Return how many train examples a client has of each class."""
    return np.bincount(client.y, minlength=client.classes or 0)
