"""Penalties added to the local objective, each as its gradient at the current parameters.

They are functions of flat parameters ``(P,)`` or ``(G, P)``, so one definition serves one client and many in lockstep.
Closed forms are added to the gradient directly: nothing can be detached by accident.
"""

from __future__ import annotations

from functools import singledispatch

from torch import Tensor

from coterie.protocol.task import Proximal, Term


@singledispatch
def gradient(term: Term, params: Tensor, start: Tensor) -> Tensor:
    """The gradient of ``term`` at ``params`` for clients that received ``start``."""
    raise NotImplementedError(f"no gradient is known for {type(term).__name__}")


@gradient.register
def _(term: Proximal, params: Tensor, start: Tensor) -> Tensor:
    return (params - start) * term.strength
