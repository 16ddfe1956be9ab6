"""Try a user's network on made-up examples before a run begins, so that it fails now and not in round 1."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.errors import ModelError
from coterie.models.model import UNCOPIED, Model

STEPS = (2, 3)
"""The number of examples of each training step."""

RATE = 0.01


def rehearsed(model: Model) -> Model:
    """Return the model if it can be built twice, copied, trained for two steps and evaluated."""
    _check_copies(model, _check_same(model))
    with model.blamed("cannot be trained"):
        params, buffers = map(torch.from_numpy, model.initial(0))
        module = model.bind(params, buffers)
        before = _form(module)
        for examples in STEPS:
            _step(model, model.to_training(module), examples)
        _check_form(model, before, _form(module))
        with torch.no_grad():
            model.check_outputs(module.eval()(model.blank(STEPS[-1])), STEPS[-1])
    return model


def _check_same(model: Model) -> nn.Module:
    """Refuse a function that does not build the same network, anew in every call, with floating-point parameters.

    What is frozen must be the same numbers too, wherever it is built from seed 0. Return a module.
    """
    with torch.random.fork_rng(devices=[]), model.blamed("cannot be built twice"):
        torch.manual_seed(0)
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
    if model.frozen_part(first) != model.frozen:
        raise ModelError(
            f"model {model.text!r} has other frozen numbers each time it is built; read them from a file, or draw them "
            "from torch's global generator"
        )
    return first


def _check_copies(model: Model, module: nn.Module) -> None:
    """Refuse a network of which two copies do not hold two rows of numbers: they share a part, or lost one."""
    params, buffers = model.initial(0)
    rows = [(params + number, buffers + number) for number in (1, 2)]
    with model.blamed(UNCOPIED):
        copies = [model.bind(*map(torch.from_numpy, row)) for row in rows]
    names = {name for name, _ in module.named_parameters()}
    for row, copy in zip(rows, copies, strict=True):
        whole = {name for name, _ in copy.named_parameters()} == names
        if not whole or not all(map(np.array_equal, row, model.flatten(copy))):
            raise ModelError(
                f"model {model.text!r} is not copied whole by copy.deepcopy; "
                "leave out its __deepcopy__, or copy every parameter in it once"
            )


Form = dict[str, bool | tuple[int, ...]]


def _form(module: nn.Module) -> Form:
    """Return which parameters are trained, and the shapes of the buffers."""
    trained: Form = {f"requires_grad of {name}": p.requires_grad for name, p in module.named_parameters()}
    return trained | {f"the shape of {name}": tuple(b.shape) for name, b in module.named_buffers()}


def _check_form(model: Model, before: Form, after: Form) -> None:
    """Refuse a network that freezes, thaws or makes parts of itself while it runs."""
    for what in sorted(before.keys() | after.keys()):
        if before.get(what) != after.get(what):
            raise ModelError(
                f"model {model.text!r} changes {what} from {before.get(what)} to {after.get(what)} while it trains; "
                "decide it where the network is built"
            )


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
