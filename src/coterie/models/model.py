"""A network as flat vectors: how parameters become one row, and a row becomes a network again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.parameter import is_lazy

from coterie.errors import CoterieError, ModelError
from coterie.models.dropout import AddressedDropout, address_dropout
from coterie.models.layout import Layout
from coterie.terminal import line
from coterie.typing import Array

_NORMALISATION = (nn.modules.batchnorm._NormBase,)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Slot:
    """Where one tensor lives in a flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    channels_last: bool = False

    def view(self, flat: Tensor) -> Tensor:
        """This tensor as a view of ``flat (..., P)``.

        Image kernels lie channels-last in the vector, so that views of it are what fast convolutions want.
        """
        part = flat[..., self.start : self.stop]
        lead = part.shape[:-1]
        if not self.channels_last:
            return part.view(*lead, *self.shape)
        out, inner, height, width = self.shape
        return part.view(*lead, out, height, width, inner).movedim(-1, -3)


@dataclass(frozen=True)
class Model:
    """A network's architecture for one kind of data; its parameters are rows of a ``(K, P)`` array elsewhere.

    ``build`` makes a fresh module. ``classes`` is None for regression (one output, squared loss), otherwise the
    loss is cross entropy. Where only a ``half`` of the network is a cluster's own, it is the submodule of that name:
    its parts are then called head, body and linear, and all the rest is ``global``.
    """

    text: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int | None
    half: str = ""

    def __repr__(self) -> str:
        outputs = "a real target" if self.classes is None else f"{self.classes} classes"
        return f"Model({self.text}{' in two halves' if self.half else ''}: {self.shape} to {outputs})"

    def module(self) -> nn.Module:
        """A fresh module of single precision whose dropout draws from addressed generators.

        Lazy layers are made, and gradients of embeddings are dense: all of it must fit into flat vectors.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
            module = address_dropout(self.build()).float()
        for layer in module.modules():
            if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
                layer.sparse = False
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            with torch.no_grad():
                module.eval()(torch.zeros(2, *self.shape))
        return module.train()

    @property
    def is_users(self) -> bool:
        """Whether it is a user's own function that builds it."""
        return ":" in self.text

    @contextmanager
    def blamed(self, what: str) -> Iterator[None]:
        """Whatever goes wrong inside is told of the model in one line: a user's code may fail in any way."""
        try:
            yield
        except CoterieError:
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(f"model {self.text!r} {what}: {reason(error)}") from error

    def _copy(self) -> nn.Module:
        with self.blamed("cannot be copied; build what copy.deepcopy takes, without locks, files and generators"):
            return deepcopy(self._template)

    @cached_property
    def _template(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.module()

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Where each trainable parameter lives in the parameter vector."""
        kernels = {f"{name}.weight" for name, m in self._template.named_modules() if isinstance(m, nn.Conv2d)}
        named = ((n, p) for n, p in self._template.named_parameters() if p.requires_grad)
        return tuple(replace(slot, channels_last=slot.name.removeprefix(".") in kernels) for slot in _slots(named))

    @cached_property
    def buffer_slots(self) -> tuple[Slot, ...]:
        """Where each float buffer lives in the buffer vector; counters are left out: a mean of them is nothing."""
        return tuple(_slots((n, b) for n, b in self._template.named_buffers() if b.is_floating_point()))

    def slots_of(self, part: str) -> tuple[Slot, ...]:
        """The slots that make up a part."""
        if part == "all":
            return self.slots
        starts = np.array([slot.start for slot in self.slots])
        inside = np.isin(starts, self.layout.numbers(part))
        return tuple(slot for slot, kept in zip(self.slots, inside, strict=True) if kept)

    @cached_property
    def _chosen(self) -> dict[str, set[str]]:
        return _parts(self._template, [slot.name for slot in self.slots], self.half)

    @cached_property
    def homes(self) -> dict[str, set[str]]:
        """The names of the modules that belong to each part: those that hold its parameters, and all of a half."""
        homes = {part: {name.rpartition(".")[0] for name in keep} for part, keep in self._chosen.items()}
        if self.half:
            modules = {name for name, _ in self._template.named_modules()}
            own = {name for name in modules if f"{name}.".startswith(f"{self.half}.")}
            homes |= {self.half: own, "global": modules - own}
        return homes

    @cached_property
    def layout(self) -> Layout:
        """The named parts of the two vectors."""
        parts = {part: _numbers(s for s in self.slots if s.name in keep) for part, keep in self._chosen.items()}
        buffers = {
            part: _numbers(s for s in self.buffer_slots if s.name.rpartition(".")[0] in home)
            for part, home in self.homes.items()
        }
        buffers["all"] = _numbers(iter(self.buffer_slots))
        return Layout(
            sum(s.stop - s.start for s in self.slots), sum(s.stop - s.start for s in self.buffer_slots), parts, buffers
        )

    def initial(self, seed: int) -> tuple[Array, Array]:
        """Parameters and buffers as the layers' own initialisers draw them from ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.module()
        return self.flatten(module)

    def flatten(self, module: nn.Module) -> tuple[Array, Array]:
        """The two flat vectors of a module."""
        params, buffers = torch.empty(self.layout.size), torch.empty(self.layout.buffer_size)
        self.copy(module, params, buffers)
        return params.numpy(), buffers.numpy()

    def copy(self, module: nn.Module, params: Tensor, buffers: Tensor) -> None:
        """Write a module's tensors into flat vectors."""
        with torch.no_grad():
            named = dict(module.named_parameters())
            for slot in self.slots:
                slot.view(params).copy_(named[slot.name])
            counted = dict(module.named_buffers())
            for slot in self.buffer_slots:
                slot.view(buffers).copy_(counted[slot.name])

    def bind(self, params: Tensor, buffers: Tensor) -> nn.Module:
        """A module whose parameters and buffers *are* the flat vectors: changing one changes the other.

        What is not in the vectors (frozen parameters, counters) is the template's, the same in every module.
        """
        module = self._copy().train().to(dtype=params.dtype, device=params.device)
        owners, named = dict(module.named_modules()), dict(module.named_parameters())
        for slot in self.slots:
            named[slot.name].data = slot.view(params)
        for slot in self.buffer_slots:
            home, _, name = slot.name.rpartition(".")
            owners[home]._buffers[name] = slot.view(buffers)
        return module

    def with_row(self, params: Array, buffers: Array) -> nn.Module:
        """A stand-alone module in evaluation mode, holding a copy of one row."""
        return self.bind(torch.from_numpy(params.copy()), torch.from_numpy(buffers.copy())).eval()

    @cached_property
    def is_convolutional(self) -> bool:
        """Whether any layer convolves: then clients are trained one per core, channels last."""
        return any(isinstance(m, _CONVOLUTION) for m in self._template.modules())

    @cached_property
    def can_lockstep(self) -> bool:
        """Whether many clients may train as one batched computation: no layer looks across the batch or draws."""
        exact = (*_NORMALISATION, AddressedDropout)
        if any(isinstance(m, exact) for m in self._template.modules()) or self.layout.buffer_size:
            return False
        module = self._copy().train()
        leaves = {name: p.detach().expand(2, *p.shape) for name, p in module.named_parameters()}
        x = torch.linspace(-1, 1, 6 * math.prod(self.shape)).view(2, 3, *self.shape)
        other = x.clone()
        other[:, 2] += 1
        try:
            forward = vmap(lambda one, batch: functional_call(module, one, (batch,)))
            before, after = forward(leaves, x), forward(leaves, other)
        except Exception:  # a layer, or a branch, that torch cannot batch
            return False
        # Padding is harmless only where one example never shows in another's output.
        return bool(torch.allclose(before[:, :2], after[:, :2], rtol=1e-4, atol=1e-6))

    @property
    def default_lr(self) -> float:
        """The learning rate where none is given: 0.1 for dense nets, 0.01 for convolutions."""
        return 0.01 if self.is_convolutional else 0.1

    @cached_property
    def flops(self) -> int:
        """Multiply-adds x 2 of one example's forward pass through its linear and convolution layers."""
        total = 0

        def count(layer: nn.Module, _: Any, out: Tensor) -> None:
            nonlocal total
            weight = layer.weight
            assert isinstance(weight, Tensor)
            total += 2 * weight.numel() * (out[0].numel() // weight.shape[0])

        module = self.module().eval()
        hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, (nn.Linear, *_CONVOLUTION))]
        with torch.no_grad():
            module(torch.zeros(1, *self.shape))
        for hook in hooks:
            hook.remove()
        return total

    def check(self) -> Model:
        """Run one example through: a model that does not fit the data says so now, not in round 1."""
        with self.blamed(f"does not fit examples of shape {self.shape}"), torch.no_grad():
            self.check_outputs(self._template.eval()(torch.zeros(2, *self.shape)), 2)
        self._check_chance()
        if not self.slots:
            raise ModelError(f"model {self.text!r} has no trainable parameter")
        return self

    def check_outputs(self, out: Any, examples: int) -> Tensor:
        """The outputs for so many examples, if they are what a loss can be made of."""
        wanted = 1 if self.classes is None else self.classes
        if not isinstance(out, Tensor):
            raise ModelError(
                f"model {self.text!r} gives a {type(out).__name__} where a tensor is needed; "
                f"return its outputs alone, ({wanted},) an example"
            )
        if tuple(out.shape) != (examples, wanted):
            raise ModelError(
                f"model {self.text!r} gives outputs of shape {tuple(out.shape)[1:]} an example; "
                f"these data need ({wanted},): make its last layer {wanted} wide"
            )
        if out.dtype not in (torch.float32, torch.float64):
            kind = str(out.dtype).removeprefix("torch.")
            raise ModelError(f"model {self.text!r} gives outputs of {kind}; return float32, without argmax or casts")
        return out

    def _check_chance(self) -> None:
        """Random draws of a module must have an address: torch's global generator may not be touched."""
        module = self._copy().train()
        before = torch.get_rng_state()
        with torch.no_grad(), self.blamed("fails in training mode"):
            module(torch.zeros(2, *self.shape))
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            raise ModelError(
                f"model {self.text!r} draws from torch's global generator in training, so no run could be repeated; "
                "use nn.Dropout layers in place of torch.nn.functional.dropout"
            )


def reason(error: BaseException) -> str:
    """An error's kind and the first line of what it says, as far as a terminal should show it.

    >>> reason(ValueError("no\\nmore"))
    'ValueError: no'
    """
    return line(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", 500)


def head_of(module: nn.Module, half: str = "") -> str | None:
    """The name of the last layer, or of that of one ``half``: a submodule called ``head``, else the last linear one."""
    if half:
        inner = head_of(module.get_submodule(half))
        return inner if inner is None else f"{half}.{inner}".rstrip(".")
    if isinstance(getattr(module, "head", None), nn.Module):
        return "head"
    linear = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    return linear[-1] if linear else None


def _parts(module: nn.Module, names: list[str], half: str) -> dict[str, set[str]]:
    own = {n for n in names if n.startswith(f"{half}." if half else "")}
    head = head_of(module, half)
    inside = {n for n in own if head is not None and n.startswith(f"{head}." if head else "")}
    linear = {name and f"{name}." for name, m in module.named_modules() if isinstance(m, nn.Linear)}
    after = tuple(name and f"{name}." for name in _after_convolutions(module.get_submodule(half), half))
    projection = inside | {n for n in own if n.startswith(after)}
    return {
        "all": set(names),
        "head": inside,
        "head_weight": {n for n in inside if n.rpartition(".")[2] == "weight"},
        "body": own - inside,
        "linear": {n for n in own if any(n.startswith(prefix) for prefix in linear)},
        "projection": projection,
        "features": own - projection,
        **({half: own, "global": set(names) - own} if half else {}),
    }


def _after_convolutions(module: nn.Module, half: str) -> list[str]:
    """The names of the linear layers after the last convolution; none where nothing convolves."""
    kinds = [(f"{half}.{name}".strip("."), m) for name, m in module.named_modules()]
    last = max((place for place, (_, m) in enumerate(kinds) if isinstance(m, _CONVOLUTION)), default=len(kinds))
    return [name for name, m in kinds[last:] if isinstance(m, nn.Linear)]


def _slots(named: Iterator[tuple[str, Tensor]]) -> Iterator[Slot]:
    start = 0
    for name, tensor in named:
        yield Slot(name, tuple(tensor.shape), start, start + tensor.numel())
        start += tensor.numel()


def _numbers(slots: Iterator[Slot]) -> Array:
    parts = [np.arange(s.start, s.stop) for s in slots]
    return np.concatenate(parts) if parts else np.arange(0)
