"""The networks of the papers, and any network of a user, built for examples of one shape.

An entry is a function that returns a recipe ``(shape, outputs) -> nn.Module``; a recipe for tokens takes the size of
their ``vocabulary``, too. Pooling stands before ReLU throughout:
the two commute, and ReLU then has a quarter of the work.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from coterie.errors import ModelError
from coterie.limits import COPIES, DEPTH, WIDTH, check_memory
from coterie.models.model import Model
from coterie.models.rehearsal import rehearsed
from coterie.outside import find_outside, is_outside
from coterie.target import Target
from coterie.textforms import Call, Catalogue, parse_one

PADDING = 0
"""The token that fills up short examples."""

Recipe = Callable[..., nn.Module]
"""``(shape, outputs)``, or ``(shape, outputs, vocabulary)`` for tokens, to a network."""


def mlp(*hidden: int) -> Recipe:
    """Build fully connected ReLU layers; ``mlp`` is ``mlp(64)``, ifca's is ``mlp(200)``, joint's ``mlp(512,128)``.

    The joint paper's for CIFAR-10 is ``mlp(2048,512)`` (its fig. 3).
    """
    for width in hidden:
        _check_width("the width of a layer", width)
    return partial(_dense, hidden or (64,))


def logistic() -> Recipe:
    """Build one linear layer: logistic regression, or linear regression on a real target."""
    return partial(_dense, ())


def tabular(width: int = 128, depth: int = 2, dropout: float = 0.1) -> Recipe:
    """Build a perceptron for tables: ``depth`` layers of ``width`` with ReLU and dropout."""
    _check_width("width", width)
    _check_size(0 <= depth <= DEPTH, "depth", depth, f"from 0 to {DEPTH}")
    _check_size(0 <= dropout < 1, "dropout", dropout, "in [0, 1)")

    def recipe(shape: tuple[int, ...], outputs: int) -> nn.Module:
        widths = [math.prod(shape), *[width] * depth]
        layers = [[nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)] for a, b in pairwise(widths)]
        return nn.Sequential(nn.Flatten(), *chain.from_iterable(layers), nn.Linear(widths[-1], outputs))

    return recipe


def cnn() -> Recipe:
    """Build 5x5 convolutions (16, 32) with batch normalisation and pooling, one linear layer (thesis, A.1 and A.4)."""
    return partial(_conv_net, lambda c: [*_normed(c, 16), *_normed(16, 32)], ())


def lenet() -> Recipe:
    """Build two 5x5 convolutions (6, 16) with pooling, linear 120, 84 (thesis tables A.2 and A.3)."""
    return partial(_conv_net, lambda c: [*_pooled(c, 6, 5), *_pooled(6, 16, 5)], (120, 84))


def cnn_joint(kernel: int = 3) -> Recipe:
    """Build the joint paper's CNN for 28x28: two 3x3 convolutions (32, 64), one pooling, linear 128.

    Its fig. 3. ``kernel`` is the side of the first convolution: 3 for MNIST and Fashion-MNIST, 5 for EMNIST. For
    CIFAR-10 the paper has ``lenet``.
    """
    _check_size(1 <= kernel <= DEPTH, "kernel", kernel, f"from 1 to {DEPTH}")
    return partial(_conv_net, lambda c: [nn.Conv2d(c, 32, kernel), nn.ReLU(), *_pooled(32, 64, 3)], (128,))


def cnn_lcfl(padding: int = 2) -> Recipe:
    """Build the lcfl authors' CNN for rotated MNIST: two padded 5x5 convolutions (16, 32) with pooling, linear 256.

    The paper does not print its layers; in the authors' code they are padded by 2. ``padding=0`` is the smaller net
    of earlier measurements here.
    """
    _check_size(0 <= padding <= 4, "padding", padding, "from 0 to 4")
    return partial(_conv_net, lambda c: [*_pooled(c, 16, 5, padding), *_pooled(16, 32, 5, padding)], (256,))


def tiny_vgg(width: int = 16) -> Recipe:
    """Build a small VGG-like net as in the ocfl paper: two blocks of two 3x3 convolutions and a pooling, one linear."""
    _check_width("width", width)

    def layers(channels: int) -> list[nn.Module]:
        first = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), *_pooled(width, width, 3, padding=1)]
        second = [nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), *_pooled(2 * width, 2 * width, 3, padding=1)]
        return [*first, *second]

    return partial(_conv_net, layers, ())


def resnet34() -> Recipe:
    """Build ResNet-34 with the 3x3 first layer usual for 32x32 images (ocfl's net for CIFAR-10)."""
    return _resnet


def bag(width: int = 64) -> Recipe:
    """Build a net for tokens, such as words of a text: the mean of their embeddings, and one linear layer.

    Token 0 is padding: it does not count in the mean.
    """
    _check_width("width", width)
    return partial(_bag, width)


models = Catalogue(
    "model",
    {
        "mlp": mlp,
        "logistic": logistic,
        "linear": logistic,
        "tabular": tabular,
        "cnn": cnn,
        "lenet": lenet,
        "cnn-joint": cnn_joint,
        "cnn-lcfl": cnn_lcfl,
        "tiny-vgg": tiny_vgg,
        "resnet34": resnet34,
        "bag": bag,
    },
    typed=True,
)


def build_model(
    text: str | None,
    shape: tuple[int, ...],
    classes: int | None,
    columns: int | None = None,
    vocabulary: int | None = None,
) -> Model:
    """Build the model that a text names, for examples of one shape; None takes the default of the shape.

    ``columns`` and ``vocabulary`` are those of ``Model``.

    >>> build_model("mlp(32)", (8, 8), 10).layout.size
    2410
    """
    if text is None:
        text = "bag" if vocabulary else default_for(shape)
    if not text.strip():
        raise ModelError(f"model is {text!r}; name one, such as mlp(64), or leave it out")
    outputs = Target(classes, columns).width
    call = parse_one(text)
    recipe = _users(call, vocabulary) if is_outside(call.name) else _recipe(call, vocabulary)

    def build() -> nn.Module:
        module = recipe(shape, outputs)
        if not isinstance(module, nn.Module):
            raise ModelError(f"{text!r} must build a torch.nn.Module, not {type(module).__name__}")
        return module

    model = Model(str(call), build, tuple(shape), classes, columns=columns, vocabulary=vocabulary)
    with torch.random.fork_rng(devices=[]), model.blamed(f"cannot be built for examples of shape {shape}"):
        if not model.is_users and (call.args or call.kwargs or vocabulary):  # others are of one size
            numbers = sum(count_numbers(call, shape, outputs, vocabulary))
            what = f"model {model.text!r} has {numbers:,} numbers for examples of shape {shape}; training it"
            check_memory(what, COPIES * 4 * numbers, "take a smaller one")
        model.module()
    model.check()
    return rehearsed(model) if model.is_users else model


def count_numbers(call: Call, shape: tuple[int, ...], outputs: int, vocabulary: int | None = None) -> tuple[int, int]:
    """Return the numbers of parameters and buffers of a network of the catalogue, without making any of them.

    >>> count_numbers(Call("mlp", (32,)), (8, 8), 10)
    (2410, 0)
    """
    with torch.device("meta"):
        module = _recipe(call, vocabulary)(shape, outputs)
    params = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return params, sum(b.numel() for b in module.buffers() if b.is_floating_point())


def _recipe(call: Call, vocabulary: int | None) -> Recipe:
    """Return the recipe of a network of the catalogue; refuse sizes beyond the limits, and one for other examples."""
    try:
        recipe: Recipe = models.build(call)
    except ModelError as error:
        raise ModelError(f"model {str(call)!r} cannot be built: {error}") from None
    if takes_vocabulary(recipe) != (vocabulary is not None):
        kinds = ("tokens", "numbers") if takes_vocabulary(recipe) else ("numbers", "tokens")
        remedy = "use bag, or a network of yours" if vocabulary else "read them with tokens=True (--tokens), or use mlp"
        raise ModelError(f"model {str(call)!r} is for {kinds[0]} and the examples are {kinds[1]}; {remedy}")
    return recipe if vocabulary is None else partial(recipe, vocabulary=vocabulary)


def _check_size(good: bool, name: str, value: float, limit: str) -> None:
    if not good:
        raise ModelError(f"{name} is {value}; it must be {limit}")


def _check_width(name: str, width: int) -> None:
    _check_size(1 <= width <= WIDTH, name, width, f"from 1 to {WIDTH:,}")


def default_for(shape: tuple[int, ...]) -> str:
    """Return the default network: mlp(64) for vectors and small images, cnn for 28x28, lenet for 32x32 and above."""
    if len(shape) != 3 or min(shape[1:]) < 16:
        return "mlp(64)"
    return "cnn" if min(shape[1:]) < 32 else "lenet"


def _users(call: Call, vocabulary: int | None) -> Recipe:
    """Return the recipe of a user's ``module:function``, called with the text's arguments, and ``(shape, outputs)``.

    A function that has no room for them is called without shape and outputs; one with an argument ``vocabulary`` gets
    the number of tokens, None where examples are numbers.
    """
    function = find_outside("model", call.name, ModelError)
    words = {**({"vocabulary": vocabulary} if takes_vocabulary(function) else {}), **dict(call.kwargs)}
    if takes_shape(function):
        return lambda shape, outputs: function(shape, outputs, *call.args, **words)
    return lambda shape, outputs: function(*call.args, **words)


def takes_shape(function: Callable[..., Any]) -> bool:
    """Return whether a function that makes a network has room for ``(shape, outputs)``.

    >>> takes_shape(lambda width=3: None), takes_shape(lambda shape, outputs, width=3: None)
    (False, True)
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return True
    room = sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in found)
    return room >= 2 or any(each.kind is each.VAR_POSITIONAL for each in found)


def takes_vocabulary(function: Callable[..., Any]) -> bool:
    """Return whether a function that makes a network has an argument ``vocabulary``, for the number of tokens."""
    try:
        return "vocabulary" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False


class _Bag(nn.Module):
    """The mean of the embeddings of an example's tokens, but for padding, and a linear layer."""

    def __init__(self, vocabulary: int, width: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(1)
        counted = (tokens != PADDING).unsqueeze(-1).to(self.embedding.weight.dtype)
        mean = (self.embedding(tokens) * counted).sum(1) / counted.sum(1).clamp(min=1)
        outputs: Tensor = self.head(mean)
        return outputs


def _bag(width: int, shape: tuple[int, ...], outputs: int, vocabulary: int) -> nn.Module:
    return _Bag(vocabulary, width, outputs)


def _dense(hidden: tuple[int, ...], shape: tuple[int, ...], outputs: int) -> nn.Module:
    widths = [math.prod(shape), *hidden]
    layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in pairwise(widths)]
    return nn.Sequential(nn.Flatten(), *chain.from_iterable(layers), nn.Linear(widths[-1], outputs))


def _conv_net(
    layers: Callable[[int], list[nn.Module]], hidden: tuple[int, ...], shape: tuple[int, ...], outputs: int
) -> nn.Module:
    if len(shape) != 3:
        raise ModelError(f"a convolution net needs images of shape (channels, height, width), not {shape}; use mlp")
    body = nn.Sequential(*layers(shape[0]), nn.Flatten())
    with torch.no_grad():
        width = body.eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*body.train(), *_dense(hidden, (width,), outputs).children())


def _pooled(inner: int, outer: int, kernel: int, padding: int = 0) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()]


def _normed(inner: int, outer: int) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, 5, padding=2), nn.BatchNorm2d(outer), nn.MaxPool2d(2), nn.ReLU()]


class _Residual(nn.Module):
    """Two 3x3 convolutions around a short cut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        same = stride == 1 and inner == outer
        project = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.short: nn.Module = nn.Identity() if same else project

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.short(x))


def _resnet(shape: tuple[int, ...], outputs: int) -> nn.Module:
    widths, depths = (64, 128, 256, 512), (3, 4, 6, 3)
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inner = 64
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for block in range(depth):
            layers.append(_Residual(inner, width, 2 if stage and not block else 1))
            inner = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))
