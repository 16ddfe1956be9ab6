"""Networks whose numbers cannot be rows of flat vectors are refused, in one line that says what to do."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from coterie.errors import ModelError

QUANTISED = ("torch.ao.nn.", "torch.nn.quantized.", "torch.nn.intrinsic.", "bitsandbytes.", "torchao.")
"""Where the classes of quantised layers are."""


def refuse_odd(module: nn.Module, text: str) -> nn.Module:
    """Return the module; refuse quantised layers, and trained parameters that share memory with something else."""
    for name, layer in module.named_modules():
        if type(layer).__module__.startswith(QUANTISED):
            raise ModelError(
                f"model {text!r} has the quantised layer {name or 'itself'} ({type(layer).__name__}); "
                "train it in float32, and quantise it after the run"
            )
    for name, parameter in module.named_parameters():
        kind = type(parameter.data)
        if not is_lazy(parameter) and (kind is not Tensor or parameter.is_quantized):
            words = "a quantised tensor" if kind is Tensor else f"a {kind.__name__}"
            raise ModelError(f"model {text!r} has the parameter {name}, {words}; use a plain tensor of float32")
    _refuse_shared(module, text)
    return module


class _Span(NamedTuple):
    """The bytes from the first to the last number of a tensor."""

    storage: int
    start: int
    stop: int
    name: str
    trained: bool


def _refuse_shared(module: nn.Module, text: str) -> None:
    """Refuse views: training one would change the other, and in flat vectors each has a range of its own."""
    named = [*module.named_parameters(), *module.named_buffers()]
    spans = sorted(_span(name, tensor) for name, tensor in named if not is_lazy(tensor) and tensor.device.type == "cpu")
    last: _Span | None = None
    for span in spans:
        if last and span.storage == last.storage and span.start < last.stop and (span.trained or last.trained):
            raise ModelError(
                f"model {text!r} has {span.name} in the memory of {last.name}; "
                "give it numbers of its own with .clone(), or tie both with one nn.Parameter"
            )
        last = span if last is None or (span.storage, span.stop) > (last.storage, last.stop) else last
    for name, parameter in module.named_parameters():
        if not is_lazy(parameter) and parameter.requires_grad and _repeats(parameter):
            raise ModelError(
                f"model {text!r} has {name}, which is one number many times; give it .contiguous() numbers"
            )


def _span(name: str, tensor: Tensor) -> _Span:
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    first, size = int(tensor.storage_offset()), tensor.element_size()
    last = first + sum((side - 1) * stride for side, stride in sides) + 1 if tensor.numel() else first
    trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
    return _Span(tensor.untyped_storage().data_ptr(), first * size, last * size, name, trained)


def _repeats(tensor: Tensor) -> bool:
    return any(side > 1 and not stride for side, stride in zip(tensor.shape, tensor.stride(), strict=True))
