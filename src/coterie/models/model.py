"""A network as flat vectors: how its parameters become one row, and a row becomes a network again."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.parameter import is_lazy

from coterie.errors import CoterieError, ModelError
from coterie.models.dropout import AddressedDropout, address_dropout
from coterie.models.hashing import hash_tensors
from coterie.models.layout import Layout
from coterie.models.refusals import refuse_odd
from coterie.outside import is_outside, reason
from coterie.target import Target
from coterie.typing import Array

_NORMALISATION = (nn.modules.batchnorm._NormBase,)
_CONVOLUTION = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

UNCOPIED = "cannot be copied; build what copy.deepcopy takes, without locks, files and generators"
"""What is said of a network that copy.deepcopy does not take."""

COUNTER = "num_batches_tracked"
"""The buffer in which a normalisation layer counts batches: it is set to zero before every client."""


@dataclass(frozen=True)
class Slot:
    """The range of one tensor in a flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    _: KW_ONLY
    channels_last: bool = False

    def view(self, flat: Tensor) -> Tensor:
        """Return this tensor as a view of ``flat (..., P)``.

        Image kernels lie channels-last in the vector: views of it have the memory format of fast convolutions.
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
    loss is cross entropy. With ``columns`` there are that many outputs, each a number (squared loss) or, with two
    ``classes``, a label's log-odds (cross entropy of each), and the loss is their mean. With a ``vocabulary`` examples
    are int64 tokens. ``cluster_part`` is the name of the submodule that belongs to a cluster alone, if the rest of
    the network, the part ``global``, is shared by all: head, body and linear are then parts of that submodule.
    """

    text: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int | None
    _: KW_ONLY
    columns: int | None = None
    vocabulary: int | None = None
    cluster_part: str = ""

    def __repr__(self) -> str:
        return f"Model({self.text}{' in two parts' if self.cluster_part else ''}: {self.shape} to {self.target})"

    @property
    def target(self) -> Target:
        """What the outputs predict."""
        return Target(self.classes, self.columns)

    def blank(self, examples: int) -> Tensor:
        """Return examples of nothing but zeros, of the type that the network takes."""
        return torch.zeros(examples, *self.shape, dtype=torch.float32 if self.vocabulary is None else torch.int64)

    def module(self) -> nn.Module:
        """Build a module of single precision with addressed dropout.

        Lazy layers are initialised, and gradients of embeddings are dense: all of it must fit into flat vectors.
        Frozen submodules that were built in evaluation mode stay in it: they rest.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
            module = address_dropout(refuse_odd(self.build(), self.text)).float()
        at_rest = [part for part in module.modules() if module.training and not part.training and _is_frozen(part)]
        for layer in module.modules():
            if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
                layer.sparse = False
        if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
            with torch.no_grad():
                module.eval()(self.blank(2))
        module.train()
        for part in at_rest:
            part.training = False
        return module

    def to_training(self, module: nn.Module) -> nn.Module:
        """Set a module of this model to training mode, all but the submodules that rest."""
        module.train()
        if self.resting:
            for name, part in module.named_modules():
                part.training = part.training and name not in self.resting
        return module

    @property
    def is_users(self) -> bool:
        """Return whether a user's function builds it."""
        return is_outside(self.text)

    @contextmanager
    def blamed(self, what: str) -> Iterator[None]:
        """Turn every error inside the block into a ModelError of one line: a user's code may fail in any way."""
        try:
            yield
        except CoterieError:
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(f"model {self.text!r} {what}: {reason(error)}") from error

    def copy(self) -> nn.Module:
        """Return a module with the frozen numbers of all modules, and parameters that are drawn from seed 0."""
        with self.blamed(UNCOPIED):
            return deepcopy(self._template)

    @cached_property
    def _template(self) -> nn.Module:
        """Return a module that gives the shapes of all others, and what is not in the flat vectors."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.module()

    @cached_property
    def resting(self) -> frozenset[str]:
        """Return the names of the submodules that stay in evaluation mode in training, such as a frozen trunk's."""
        return frozenset(name for name, part in self._template.named_modules() if not part.training)

    @cached_property
    def frozen(self) -> str:
        """Return a hash of all numbers that are not in the flat vectors, but for counters; empty if there are none."""
        return self.frozen_part(self._template)

    def frozen_part(self, module: nn.Module) -> str:
        """Return the hash ``frozen`` of a module of this model."""
        inside = {slot.name for slot in (*self.slots, *self.buffer_slots)}
        named = (*module.named_parameters(), *module.named_buffers())
        outside = [(n, t) for n, t in named if n not in inside and n.rpartition(".")[2] != COUNTER]
        return hash_tensors(outside) if outside else ""

    @cached_property
    def depths(self) -> dict[str, int]:
        """Return the number of every submodule, by which its draws are addressed."""
        numbers = {part: number for number, part in enumerate(self._template.modules())}
        return {name: numbers[part] for name, part in self._template.named_modules(remove_duplicate=False)}

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Return the range of each trainable parameter in the parameter vector."""
        kernels = {f"{name}.weight" for name, m in self._template.named_modules() if isinstance(m, nn.Conv2d)}
        named = ((n, p) for n, p in self._template.named_parameters() if p.requires_grad)
        return tuple(replace(slot, channels_last=slot.name.removeprefix(".") in kernels) for slot in _slots(named))

    @cached_property
    def buffer_slots(self) -> tuple[Slot, ...]:
        """Return the range of each float buffer in the buffer vector.

        Counters are left out, since they have no mean, and so are the buffers of submodules that rest.
        """
        named = ((n, b) for n, b in self._template.named_buffers() if b.is_floating_point())
        return tuple(_slots((n, b) for n, b in named if n.rpartition(".")[0] not in self.resting))

    def slots_of(self, part: str) -> tuple[Slot, ...]:
        """Return the slots of a part."""
        if part == "all":
            return self.slots
        starts = np.array([slot.start for slot in self.slots])
        inside = np.isin(starts, self.layout.numbers(part))
        return tuple(slot for slot, kept in zip(self.slots, inside, strict=True) if kept)

    @cached_property
    def _parameter_names(self) -> dict[str, set[str]]:
        """Return the names of the parameters of each part; see ``Layout``."""
        module, part, names = self._template, self.cluster_part, {slot.name for slot in self.slots}
        own = {n for n in names if n.startswith(f"{part}." if part else "")}
        head = head_of(module, part)
        inside = {n for n in own if head is not None and n.startswith(f"{head}." if head else "")}
        linear = {name and f"{name}." for name, m in module.named_modules() if isinstance(m, nn.Linear)}
        layers = [(f"{part}.{name}".strip("."), m) for name, m in module.get_submodule(part).named_modules()]
        last = max((i for i, (_, m) in enumerate(layers) if isinstance(m, _CONVOLUTION)), default=len(layers))
        after = tuple(name and f"{name}." for name, m in layers[last:] if isinstance(m, nn.Linear))
        projection = inside | {n for n in own if n.startswith(after)}
        return {
            "all": names,
            "head": inside,
            "head_weight": {n for n in inside if n.rpartition(".")[2] == "weight"},
            "head_bias": {n for n in inside if n.rpartition(".")[2] == "bias"},
            "body": own - inside,
            "linear": {n for n in own if any(n.startswith(prefix) for prefix in linear)},
            "projection": projection,
            "features": own - projection,
            **({part: own, "global": names - own} if part else {}),
        }

    @cached_property
    def homes(self) -> dict[str, set[str]]:
        """Return the names of the modules of each part: those with parameters in it, and all of a sum's two parts."""
        homes = {part: {name.rpartition(".")[0] for name in keep} for part, keep in self._parameter_names.items()}
        if self.cluster_part:
            modules = {name for name, _ in self._template.named_modules()}
            own = {name for name in modules if f"{name}.".startswith(f"{self.cluster_part}.")}
            homes |= {self.cluster_part: own, "global": modules - own}
        return homes

    @cached_property
    def layout(self) -> Layout:
        """Return the sizes and the named parts of the two vectors."""
        parts = {
            part: _numbers(s for s in self.slots if s.name in keep) for part, keep in self._parameter_names.items()
        }
        buffers = {
            part: _numbers(s for s in self.buffer_slots if s.name.rpartition(".")[0] in home)
            for part, home in self.homes.items()
        }
        buffers["all"] = _numbers(iter(self.buffer_slots))
        return Layout(
            sum(s.stop - s.start for s in self.slots), sum(s.stop - s.start for s in self.buffer_slots), parts, buffers
        )

    def initial(self, seed: int) -> tuple[Array, Array]:
        """Return parameters and buffers as the layers' initialisers draw them from ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.module()
        return self.flatten(module)

    @torch.no_grad()
    def flatten(self, module: nn.Module) -> tuple[Array, Array]:
        """Return the two flat vectors of a module, in its precision."""
        trained, tracked = dict(module.named_parameters()), dict(module.named_buffers())
        like = trained[self.slots[0].name]
        params, buffers = like.new_empty(self.layout.size), like.new_empty(self.layout.buffer_size)
        for slot in self.slots:
            slot.view(params).copy_(trained[slot.name])
        for slot in self.buffer_slots:
            slot.view(buffers).copy_(tracked[slot.name])
        return params.numpy(), buffers.numpy()

    def bind(self, params: Tensor, buffers: Tensor) -> nn.Module:
        """Return a module with parameters and buffers that *are* the flat vectors: changing one changes the other.

        What is not in the vectors (frozen parameters, counters) is the same in every module.
        """
        module = in_precision_of(params, self.to_training(self.copy()))
        owners, named = dict(module.named_modules()), dict(module.named_parameters())
        for slot in self.slots:
            named[slot.name].data = slot.view(params)
        for slot in self.buffer_slots:
            home, _, name = slot.name.rpartition(".")
            owners[home]._buffers[name] = slot.view(buffers)
        return module

    def with_row(self, params: Array, buffers: Array) -> nn.Module:
        """Return a stand-alone module in evaluation mode that holds a copy of one row."""
        return self.bind(torch.from_numpy(params.copy()), torch.from_numpy(buffers.copy())).eval()

    @cached_property
    def is_convolutional(self) -> bool:
        """Return whether any layer convolves: clients are then trained one per core, channels last."""
        return any(isinstance(m, _CONVOLUTION) for m in self._template.modules())

    @cached_property
    def can_lockstep(self) -> bool:
        """Return whether many clients may train as one batched computation: no layer mixes examples or draws."""
        exact = (*_NORMALISATION, AddressedDropout)
        if any(isinstance(m, exact) for m in self._template.modules()) or self.layout.buffer_size:
            return False
        module = self.to_training(self.copy())
        leaves = {name: p.detach().expand(2, *p.shape) for name, p in module.named_parameters()}
        x = self._various().view(2, 3, *self.shape)
        other = x.clone()
        other[:, 2] += 1
        if self.vocabulary is not None:
            other %= self.vocabulary
        try:
            forward = vmap(lambda one, batch: functional_call(module, one, (batch,)))
            before, after = forward(leaves, x), forward(leaves, other)
        except Exception:  # a layer, or a branch, that torch cannot batch
            return False
        # Padding is harmless only where no example affects the output of another.
        return bool(torch.allclose(before[:, :2], after[:, :2], rtol=1e-4, atol=1e-6))

    def _various(self) -> Tensor:
        """Return the numbers of six examples, as different as may be."""
        count = 6 * math.prod(self.shape)
        return torch.linspace(-1, 1, count) if self.vocabulary is None else torch.arange(count) % self.vocabulary

    @cached_property
    def latent(self) -> int:
        """Return the number of inputs of the last layer, the head: how many latent features an example has."""
        found: list[int] = []
        name = head_of(self._template, self.cluster_part)
        if name is None:
            raise ModelError(f"model {self.text!r} has no head with inputs; name a submodule head")
        module = self.copy().eval()
        module.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs: found.append(inputs[0].flatten(1).shape[1])
        )
        with torch.no_grad():
            module(self.blank(2))
        return found[-1]

    @property
    def default_lr(self) -> float:
        """Return the learning rate where none is given: 0.1 for dense nets, 0.01 for convolutions."""
        return 0.01 if self.is_convolutional else 0.1

    @cached_property
    def flops(self) -> int:
        """Return twice the multiply-adds of one example's forward pass through linear and convolution layers."""
        total = 0

        def count(layer: nn.Module, _: Any, out: Tensor) -> None:
            nonlocal total
            weight = layer.weight
            assert isinstance(weight, Tensor)
            total += 2 * weight.numel() * (out[0].numel() // weight.shape[0])

        module = self.module().eval()
        hooks = [m.register_forward_hook(count) for m in module.modules() if isinstance(m, (nn.Linear, *_CONVOLUTION))]
        with torch.no_grad():
            module(self.blank(1))
        for hook in hooks:
            hook.remove()
        return total

    def check(self) -> Model:
        """Run examples through the model and refuse it, before a run begins, if it does not fit the data or draws.

        Random draws must have an address, so torch's global generator may not be used.
        """
        zeros = self.blank(2)
        with self.blamed(f"does not fit examples of shape {self.shape}"), torch.no_grad():
            self.check_outputs(self.copy().eval()(zeros), 2)
        module, before = self.to_training(self.copy()), torch.get_rng_state()
        with torch.no_grad(), self.blamed("fails in training mode"):
            module(zeros)
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            raise ModelError(
                f"model {self.text!r} draws from torch's global generator in training, so no run could be repeated; "
                "use nn.Dropout layers in place of torch.nn.functional.dropout"
            )
        if not self.slots:
            raise ModelError(f"model {self.text!r} has no trainable parameter")
        return self

    def check_outputs(self, out: Any, examples: int) -> Tensor:
        """Return the outputs for this number of examples, or refuse them if no loss can be computed from them."""
        wanted = self.target.width
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


def in_precision_of(like: Tensor, module: nn.Module) -> nn.Module:
    """Move a module to the device and the precision of a tensor; complex buffers stay complex."""
    module.to(device=like.device)
    return module.double() if like.dtype == torch.float64 else module.float()


def head_of(module: nn.Module, part: str = "") -> str | None:
    """Return the name of the last layer of a module, or of its submodule ``part``.

    It is a submodule called ``head``, otherwise the last linear layer.
    """
    if part:
        inner = head_of(module.get_submodule(part))
        return inner if inner is None else f"{part}.{inner}".rstrip(".")
    if isinstance(getattr(module, "head", None), nn.Module):
        return "head"
    linear = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    return linear[-1] if linear else None


def _is_frozen(module: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in module.parameters())


def _slots(named: Iterator[tuple[str, Tensor]]) -> Iterator[Slot]:
    start = 0
    for name, tensor in named:
        yield Slot(name, tuple(tensor.shape), start, start + tensor.numel())
        start += tensor.numel()


def _numbers(slots: Iterator[Slot]) -> Array:
    parts = [np.arange(s.start, s.stop) for s in slots]
    return np.concatenate(parts) if parts else np.arange(0)
