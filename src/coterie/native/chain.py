"""Networks as chains of layers: what the compiled engine needs to know of a network, or None if it is no such chain."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import prod
from typing import Any

from torch import nn

from coterie.models.dropout import AddressedDropout
from coterie.models.model import Model
from coterie.native.library import ChainSpec, LayerSpec

LARGEST_IMAGE = 1 << 30
"""The most numbers of one example between two layers: places in an image are numbers of 32 bits."""

Shape = tuple[int, ...]


class Kind(IntEnum):
    """The kinds of layers, as the library numbers them."""

    CONVOLUTION = 0
    LINEAR = 1
    BATCH_NORM = 2
    GROUP_NORM = 3
    RELU = 4
    TANH = 5
    GELU = 6
    GELU_TANH = 7
    MAX_POOL = 8
    AVERAGE_POOL = 9
    DROPOUT = 10
    FLATTEN = 11


ELEMENTWISE = (Kind.RELU, Kind.TANH, Kind.GELU, Kind.GELU_TANH)
"""Layers that treat every number alone."""


class Loss(IntEnum):
    """The losses, as the library numbers them."""

    CROSS_ENTROPY = 0
    SQUARED = 1
    BINARY = 2


@dataclass(frozen=True)
class Link:
    """One layer of a chain: its kind and sizes, and the shape of what it gives for an example.

    ``tensors`` names the parameters and buffers that it reads, as (field of the specification, name in the module).
    """

    kind: Kind
    out: Shape
    tensors: tuple[tuple[str, str], ...] = ()
    sizes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Chain:
    """The layers of a network in their order, each with its name in the module."""

    model: Model
    shape: tuple[int, int, int]
    links: tuple[tuple[str, Link], ...]

    @cached_property
    def spec(self) -> ChainSpec:
        """Return the description that the library takes; it holds the layers' descriptions alive."""
        layers = (LayerSpec * len(self.links))(*(self._layer(name, link) for name, link in self.links))
        target, layout = self.model.target, self.model.layout
        loss = Loss.BINARY if target.is_labels else Loss.SQUARED if target.classes is None else Loss.CROSS_ENTROPY
        first = ctypes.cast(layers, ctypes.POINTER(LayerSpec))
        return ChainSpec(first, len(layers), *self.shape, loss, target.width, layout.size, layout.buffer_size)

    def _layer(self, name: str, link: Link) -> LayerSpec:
        places = {slot.name: slot.start for slot in (*self.model.slots, *self.model.buffer_slots)}
        absent = dict.fromkeys(("weight", "bias", "mean", "variance"), -1)
        found = {own: places[f"{name}.{inner}".lstrip(".")] for own, inner in link.tensors}
        depth = self.model.depths[name]
        return LayerSpec(kind=link.kind, depth=depth, **{**absent, **found}, **link.sizes)


def chain_of(model: Model) -> Chain | None:
    """Return a network as a chain of layers that the compiled engine knows; None if it is something else.

    >>> from coterie.models.zoo import build_model
    >>> [link.kind.name for _, link in chain_of(build_model("mlp(3)", (4,), 2)).links]
    ['LINEAR', 'RELU', 'LINEAR']
    >>> chain_of(build_model("resnet34", (3, 32, 32), 2)) is None
    True
    """
    if model.cluster_part or model.vocabulary is not None or model.resting or model.frozen:
        return None
    shape, links = model.shape, list[tuple[str, Link]]()
    for name, layer in _leaves(model.copy()):
        if type(layer) is nn.Identity:
            continue
        known = LINKS.get(type(layer))
        link = None if known is None or not (len(shape) in (1, 3) or type(layer) is nn.Flatten) else known(layer, shape)
        if link is None or prod(link.out) > LARGEST_IMAGE:
            return None
        links.append((name, link))
        shape = link.out
    named = sum(len(link.tensors) for _, link in links)
    whole = named == len(model.slots) + len(model.buffer_slots)
    if shape != (model.target.width,) or not whole:
        return None
    return Chain(model, _first_shape(model), tuple(_without_idle(links)))


def _without_idle(links: list[tuple[str, Link]]) -> Iterator[tuple[str, Link]]:
    """Leave out flattening at the start, where examples are read as vectors, and where nothing counts channels after.

    A linear layer reads an image as a vector; what treats every number alone does not care.
    """
    for i, (name, link) in enumerate(links):
        after = next((own.kind for _, own in links[i + 1 :] if own.kind not in ELEMENTWISE), Kind.LINEAR)
        if link.kind is not Kind.FLATTEN or (i and after is not Kind.LINEAR):
            yield name, link


def _first_shape(model: Model) -> tuple[int, int, int]:
    """Return what the first layer sees: an image, or a vector as channels of one pixel."""
    layers = (layer for _, layer in _leaves(model.copy()) if type(layer) is not nn.Identity)
    flat = len(model.shape) != 3 or type(next(layers)) is nn.Flatten
    return (prod(model.shape), 1, 1) if flat else (model.shape[0], model.shape[1], model.shape[2])


def _leaves(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a Sequential, and of those within, in their order; a layer with hooks is itself unknown."""
    if type(module) is not nn.Sequential or _has_hooks(module):
        yield name, _Unknown() if _has_hooks(module) else module
        return
    for own, child in module.named_children():
        yield from _leaves(child, f"{name}.{own}".lstrip("."))


class _Unknown(nn.Module):
    """A layer that no chain has."""


def _has_hooks(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(map(len, hooks))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _window(kernel: Any, stride: Any, padding: Any, shape: Shape) -> tuple[dict[str, int], Shape]:
    """Return the sizes of a window that moves over an image, and the height and width of what it gives."""
    kernels, strides, pads = _pair(kernel), _pair(stride), _pair(padding)
    named = {"kernel": kernels, "stride": strides, "pad": pads}
    sizes = {f"{name}_{side}": pair[i] for name, pair in named.items() for i, side in enumerate(("height", "width"))}
    out = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(shape[1:], kernels, strides, pads, strict=True)]
    return sizes, tuple(out)


def _flatten(layer: nn.Flatten, shape: Shape) -> Link | None:
    return Link(Kind.FLATTEN, (prod(shape),)) if (layer.start_dim, layer.end_dim) == (1, -1) else None


def _weight_and_bias(layer: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in ("weight", "bias") if getattr(layer, name) is not None)


def _convolution(layer: nn.Conv2d, shape: Shape) -> Link | None:
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    if len(shape) != 3 or not plain or isinstance(layer.padding, str):
        return None
    if any(pad >= kernel for pad, kernel in zip(layer.padding, layer.kernel_size, strict=True)):
        return None
    sizes, out = _window(layer.kernel_size, layer.stride, layer.padding, shape)
    outputs = layer.out_channels
    return Link(Kind.CONVOLUTION, (outputs, *out), _weight_and_bias(layer), {"outputs": outputs, **sizes})


def _linear(layer: nn.Linear, shape: Shape) -> Link | None:
    if len(shape) != 1:
        return None
    return Link(Kind.LINEAR, (layer.out_features,), _weight_and_bias(layer), {"outputs": layer.out_features})


def _batch_norm(layer: nn.BatchNorm1d | nn.BatchNorm2d, shape: Shape) -> Link | None:
    if (
        not layer.track_running_stats
        or layer.momentum is None
        or len(shape) != (3 if isinstance(layer, nn.BatchNorm2d) else 1)
    ):
        return None
    tensors = (*_weight_and_bias(layer), ("mean", "running_mean"), ("variance", "running_var"))
    return Link(Kind.BATCH_NORM, shape, tensors, {"number": layer.eps, "momentum": layer.momentum})


def _group_norm(layer: nn.GroupNorm, shape: Shape) -> Link:
    return Link(Kind.GROUP_NORM, shape, _weight_and_bias(layer), {"number": layer.eps, "groups": layer.num_groups})


def _gelu(layer: nn.GELU, shape: Shape) -> Link:
    return Link(Kind.GELU_TANH if layer.approximate == "tanh" else Kind.GELU, shape)


def _max_pool(layer: nn.MaxPool2d, shape: Shape) -> Link | None:
    if len(shape) != 3 or layer.ceil_mode or layer.return_indices or _pair(layer.dilation) != (1, 1):
        return None
    sizes, out = _window(layer.kernel_size, layer.stride, layer.padding, shape)
    return Link(Kind.MAX_POOL, (shape[0], *out), sizes=sizes)


def _average_pool(layer: nn.AvgPool2d, shape: Shape) -> Link | None:
    if len(shape) != 3 or layer.ceil_mode or not layer.count_include_pad or layer.divisor_override is not None:
        return None
    sizes, out = _window(layer.kernel_size, layer.stride, layer.padding, shape)
    return Link(Kind.AVERAGE_POOL, (shape[0], *out), sizes=sizes)


def _global_average(layer: nn.AdaptiveAvgPool2d, shape: Shape) -> Link | None:
    if len(shape) != 3 or layer.output_size not in (1, (1, 1)):
        return None
    sizes, out = _window(shape[1:], (1, 1), (0, 0), shape)
    return Link(Kind.AVERAGE_POOL, (shape[0], *out), sizes=sizes)


def _dropout(layer: AddressedDropout, shape: Shape) -> Link:
    return Link(Kind.DROPOUT, shape, sizes={"number": layer.p, "whole_channels": int(layer.channels)})


LINKS: dict[type, Callable[[Any, Shape], Link | None]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.GroupNorm: _group_norm,
    nn.ReLU: lambda _, shape: Link(Kind.RELU, shape),
    nn.Tanh: lambda _, shape: Link(Kind.TANH, shape),
    nn.GELU: _gelu,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: _global_average,
    AddressedDropout: _dropout,
    nn.Flatten: _flatten,
}
"""What is known of each type of layer: the exact types, because a subclass may compute anything."""
