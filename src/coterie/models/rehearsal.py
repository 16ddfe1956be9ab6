"""Try a user's network on made-up examples before a run begins, so that it fails now and not in round 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.errors import ModelError
from coterie.models.model import Model

STEPS = (2, 3)
"""The number of examples of each training step."""

RATE = 0.01


def rehearsed(model: Model) -> Model:
    """Return the model if it can be built twice, trained for two steps and evaluated."""
    _check_same(model)
    with model.blamed("cannot be trained"):
        params, buffers = map(torch.from_numpy, model.initial(0))
        module = model.bind(params, buffers)
        for examples in STEPS:
            _step(model, module.train(), examples)
        with torch.no_grad():
            model.check_outputs(module.eval()(model.blank(STEPS[-1])), STEPS[-1])
    return model


def _check_same(model: Model) -> None:
    """Refuse a function that does not build the same network, anew in every call, with floating-point parameters."""
    with torch.random.fork_rng(devices=[]), model.blamed("cannot be built twice"):
        first, second = model.module(), model.module()
    if first is second:
        raise ModelError(f"model {model.text!r} is the same module each time; build a new one in each call")
    (one, other) = ({name: tuple(t.shape) for name, t in m.state_dict().items()} for m in (first, second))
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            shapes = f"{name} is {one.get(name)} and then {other.get(name)}"
            raise ModelError(f"model {model.text!r} is another network each time: {shapes}; build it without chance")
    for name, parameter in first.named_parameters():
        if not parameter.is_floating_point():
            kind = str(parameter.dtype).removeprefix("torch.")
            raise ModelError(f"model {model.text!r} has the parameter {name} of {kind}; use float32")


def _step(model: Model, module: nn.Module, examples: int) -> None:
    """Take one step of gradient descent; refuse outputs that do not depend on the parameters."""
    out = model.check_outputs(module(model.blank(examples)), examples)
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
    classes = model.target.one_of
    if classes is None:
        return F.mse_loss(out, torch.zeros(len(out), model.target.width))
    return F.cross_entropy(out, torch.arange(len(out)) % classes)
