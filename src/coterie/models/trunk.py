"""Networks in two: a frozen trunk, which gives the same features for an example every time, and the rest behind it.

The trunk is the longest row of leading layers of a Sequential in which nothing is trained, drawn or mixed between
examples. Another network declares its trunk as a submodule of that name, through which alone examples go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import takewhile

import torch
from torch import Tensor, nn

from coterie.models.dropout import AddressedDropout
from coterie.models.hashing import hash_tensors
from coterie.models.layout import Layout
from coterie.models.model import Model, head_of, in_precision_of

TRUNK = "trunk"
"""The submodule by which a network that is no Sequential declares its trunk."""

Layer = tuple[str, ...]
"""The name of a leading layer; of a sum of two networks the names of the same layer in both."""


@dataclass(frozen=True, repr=False)
class Rest(Model):
    """A network without its trunk: ``shape`` is that of features, all else is as in the ``whole``.

    Its modules have the names that they have in the whole, so that vectors, parts and draws are the same.
    """

    _: KW_ONLY
    whole: Model
    cut: tuple[Layer, ...]

    @cached_property
    def _template(self) -> nn.Module:
        module = self.whole.copy()
        for name in (name for layer in self.cut for name in layer):
            home, _, own = name.rpartition(".")
            setattr(module.get_submodule(home), own, nn.Identity())
        return module

    @cached_property
    def layout(self) -> Layout:
        """Return the sizes and the named parts of the two vectors."""
        return self.whole.layout

    @cached_property
    def homes(self) -> dict[str, set[str]]:
        """Return the names of the modules of each part."""
        return self.whole.homes

    @cached_property
    def depths(self) -> dict[str, int]:
        """Return the number of every submodule in the whole."""
        return self.whole.depths

    @property
    def default_lr(self) -> float:
        """Return the learning rate of the whole where none is given."""
        return self.whole.default_lr

    def trunk(self, like: Tensor) -> nn.Module:
        """Return the trunk, which makes features of examples, in evaluation mode and the precision of ``like``."""
        return in_precision_of(like, _layers(self.whole.copy(), self.cut)).eval().requires_grad_(False)


def rest_of(model: Model) -> Rest | None:
    """Return what is behind the trunk of a network; None if it has no trunk with parameters.

    >>> frozen = nn.Linear(4, 3).requires_grad_(False)
    >>> net = Model("net", lambda: nn.Sequential(frozen, nn.ReLU(), nn.Linear(3, 2)), (4,), 2)
    >>> rest_of(net).cut, rest_of(net).shape
    ((('0',), ('1',)), (3,))
    """
    if not model.frozen:
        return None
    module = model.to_training(model.copy())
    found, head = _leading(model, module), head_of(module, model.cluster_part)
    while found and any(f"{head}.".startswith(f"{name}.") for name in found[-1]):
        found = found[:-1]
    while found and any(True for _ in _layers(module, found).parameters()):
        rest = _cut(model, found)
        if rest is not None:
            return rest
        found = found[:-1]
    return None


def _leading(model: Model, module: nn.Module) -> tuple[Layer, ...]:
    """Return the leading layers without a number in the vectors; of a sum of two networks those that are equal."""
    inside = {slot.name for slot in (*model.slots, *model.buffer_slots)}
    if not model.cluster_part:
        return tuple((name,) for name in _leading_layers(module, "", inside))
    halves = [_leading_layers(half, f"{name}.", inside) for name, half in module.named_children()]

    def are_equal(names: Layer) -> bool:
        layers = [module.get_submodule(name) for name in names]
        return len({hash_tensors(layer.state_dict().items(), repr(layer)) for layer in layers}) == 1

    return tuple(takewhile(are_equal, zip(*halves, strict=False)))


def _leading_layers(module: nn.Module, prefix: str, inside: set[str]) -> Iterator[str]:
    """Yield the names of leading layers that have no number in the vectors ``inside`` and draw nothing."""
    in_row = type(module).forward is nn.Sequential.forward
    for name, child in module._modules.items():
        if child is None or not (in_row or name == TRUNK):
            continue
        full = f"{prefix}{name}"
        draws = any(isinstance(part, AddressedDropout) and part.training and part.p for part in child.modules())
        if draws or any(each.startswith(f"{full}.") for each in inside):
            yield from _leading_layers(child, f"{full}.", inside)
            return
        yield full


def _layers(module: nn.Module, cut: Sequence[Layer]) -> nn.Sequential:
    return nn.Sequential(*(module.get_submodule(layer[0]) for layer in cut))


@torch.no_grad()
def _cut(model: Model, cut: tuple[Layer, ...]) -> Rest | None:
    """Return the rest behind these layers if, for made-up examples, what they give may be kept in their place."""
    x = model.blank(3) + 1
    other = x.clone()
    other[2] = 0
    before = torch.get_rng_state()
    try:
        trunk = _layers(model.to_training(model.copy()), cut)
        first, again, changed = trunk(x), trunk(x), trunk(other)
        kept = trunk.eval()(x)
        if not _are_features(first, again, changed, kept) or not torch.equal(before, torch.get_rng_state()):
            return None
        shape = tuple(kept.shape[1:])
        half, columns = model.cluster_part, model.columns
        rest = Rest(
            model.text, model.build, shape, model.classes, cluster_part=half, columns=columns, whole=model, cut=cut
        )
        outputs, expected = rest.copy().eval()(kept), model.copy().eval()(x)
        return rest if torch.allclose(outputs, expected, rtol=1e-4, atol=1e-6) else None
    except Exception:  # these layers are not alone what examples go through, or take other examples only
        return None
    finally:
        torch.set_rng_state(before)


def _are_features(first: Tensor, again: Tensor, changed: Tensor, kept: Tensor) -> bool:
    """Return whether outputs of training mode are floats, the same each time, in evaluation, and beside any example."""
    if not isinstance(first, Tensor) or not first.is_floating_point() or first.dim() < 2 or len(first) != len(kept):
        return False
    alone = torch.allclose(first[:2], changed[:2], rtol=1e-4, atol=1e-6)
    return torch.equal(first, again) and torch.equal(first, kept) and alone
