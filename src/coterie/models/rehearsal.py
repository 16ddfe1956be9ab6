"""A user's network is tried on made-up examples before a run begins: what fails in round 1 is told in one line now."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.errors import ModelError
from coterie.models.model import Model

STEPS = (2, 3)
"""The examples of each step of the rehearsal."""

RATE = 0.01


def rehearsed(model: Model) -> Model:
    """The model, after two steps of training and an evaluation of it."""
    _check_same(model)
    with model.blamed("cannot be trained"):
        params, buffers = map(torch.from_numpy, model.initial(0))
        module = model.bind(params, buffers)
        for examples in STEPS:
            _step(model, module.train(), examples)
        with torch.no_grad():
            model.check_outputs(module.eval()(torch.zeros(STEPS[-1], *model.shape)), STEPS[-1])
    return model


def _check_same(model: Model) -> None:
    """The function must build one network, anew each time, of real numbers."""
    with torch.random.fork_rng(devices=[]), model.blamed("cannot be built twice"):
        first, second = model.module(), model.module()
    if first is second:
        raise ModelError(f"model {model.text!r} is the same module each time; build a new one in each call")
    (one, other) = ({name: tuple(t.shape) for name, t in m.state_dict().items()} for m in (first, second))
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            told = f"{name} is {one.get(name)} and then {other.get(name)}"
            raise ModelError(f"model {model.text!r} is another network each time: {told}; build it without chance")
    for name, parameter in first.named_parameters():
        if not parameter.is_floating_point():
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ModelError(f"model {model.text!r} has the parameter {name} of {kind}; use float32")


def _step(model: Model, module: nn.Module, examples: int) -> None:
    """One step of gradient descent; the outputs must depend on the parameters."""
    out = model.check_outputs(module(torch.zeros(examples, *model.shape)), examples)
    if not out.requires_grad:
        raise ModelError(f"model {model.text!r} gives outputs without a gradient; do not detach them, nor use no_grad")
    leaves = [p for p in module.parameters() if p.requires_grad]
    found = torch.autograd.grad(_loss(model, out), leaves, materialize_grads=True)
    with torch.no_grad():
        for leaf, gradient in zip(leaves, found, strict=True):
            if gradient.is_sparse:
                raise ModelError(f"model {model.text!r} makes sparse gradients; embed with sparse=False")
            leaf.sub_(gradient, alpha=RATE)


def _loss(model: Model, out: Tensor) -> Tensor:
    if model.classes is None:
        return F.mse_loss(out.squeeze(-1), torch.zeros(len(out)))
    return F.cross_entropy(out, torch.arange(len(out)) % model.classes)
