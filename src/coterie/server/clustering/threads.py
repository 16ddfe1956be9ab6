"""Threads for products of matrices: for small ones several wait for each other longer than they work."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread(small: bool = True) -> AbstractContextManager[Any]:
    """Let products of matrices take one thread each if they are small, and as many as before otherwise."""
    limit: AbstractContextManager[Any] = _pools().limit(limits=1 if small else None, user_api="blas")
    return limit


@cache
def _pools() -> ThreadpoolController:
    return ThreadpoolController()
