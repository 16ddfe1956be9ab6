"""Short hashes of numbers: networks with the same hash have the same numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def hash_tensors(named: Iterable[tuple[str, Tensor]], about: str = "", *, length: int = 16) -> str:
    """Return a hash of this many letters of tensors, their names, shapes and types; equal on every machine.

    >>> hash_tensors([("a", torch.zeros(2))]) == hash_tensors([("a", torch.zeros(2, 1)[:, 0])])
    True
    >>> hash_tensors([("a", torch.zeros(2))]) == hash_tensors([("a", torch.tensor([0.0, 1e-30]))])
    False
    """
    digest = hashlib.blake2b(about.encode(), digest_size=length // 2)
    for name, tensor in named:
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().resolve_conj().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
