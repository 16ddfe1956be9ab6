"""A network as a file that other programs run: an ONNX graph, a program of ``torch.export``, or its weights by name.

All three hold the network that answers (``outputs.answering``): probabilities, and numbers in the units of the table.
"""

from __future__ import annotations

import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from coterie.errors import ModelError, UsageError
from coterie.exporting.outputs import Outputs, answering
from coterie.models.combined import Mixture
from coterie.models.model import Model
from coterie.outside import is_installed, reason
from coterie.typing import Array

INPUT, ANSWERS = "x", "answers"
"""The names of the input and the output of an ONNX graph."""

LARGEST = (1 << 31) - 1
"""Bytes of an ONNX file: protobuf takes no more."""

AGREE = 1e-4
"""How far, in units of the largest answer, an exported network may be from the original on made-up examples."""

PROBES = 7
"""Made-up examples on which an exported network is compared with the original."""

ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def onnx_file(network: nn.Module, model: Model, outputs: Outputs, like: bytes | None = None) -> bytes:
    """Return an ONNX graph from ``x`` to ``answers`` for any number of rows, compared with the network.

    ``like``: the file of another network with the same layers, which is faster to fill than to make again.
    """
    for package in ONNX_PACKAGES:
        if not is_installed(package):
            raise UsageError(
                f"ONNX files are made with the package {package}; pip install 'coterie[onnx]', or use --format torch"
            )
    whole = answering(network, outputs)
    filled = None if like is None else _filled(like, whole)
    if filled is not None and _agrees(whole, model, partial(run_onnx, filled)):
        return filled
    with _blamed(model, "ONNX", "torch or safetensors"), _quiet():
        made = torch.onnx.export(
            _program(whole, model),
            input_names=[INPUT],
            output_names=[ANSWERS],
            external_data=False,
            verbose=False,
            optimize=False,  # so that all weights keep their names; runtimes optimise a graph when they load it
        )
        assert made is not None, "only the old exporter returns nothing"
        content: bytes = made.model_proto.SerializeToString()
    if len(content) > LARGEST:
        raise ModelError(f"model {model.text!r} is {len(content):,} bytes, more than an ONNX file holds; use torch")
    _check_agreement(whole, model, "ONNX", partial(run_onnx, content))
    return content


def _filled(file: bytes, whole: nn.Module) -> bytes | None:
    """Return an ONNX file with the numbers of another network; None if a number has no place in it."""
    import onnx

    graph = onnx.load_from_string(file)
    places = {each.name: each for each in graph.graph.initializer}
    for name, tensor in whole.state_dict().items():
        if name in places and tuple(places[name].dims) == tuple(tensor.shape):
            places[name].CopyFrom(onnx.numpy_helper.from_array(tensor.contiguous().numpy(), name))
        elif name in places or tensor.is_floating_point():
            return None
    found: bytes = graph.SerializeToString()
    return found


def run_onnx(content: bytes, x: Array) -> Array:
    """Return the answers of an ONNX graph for examples."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    found: Array = session.run([ANSWERS], {INPUT: x})[0]
    return found


def torch_file(network: nn.Module, model: Model, outputs: Outputs) -> bytes:
    """Return a program of ``torch.export``, which torch runs without the code of the network."""
    whole, file = answering(network, outputs), io.BytesIO()
    with _blamed(model, "torch", "safetensors"), _quiet():
        torch.export.save(_program(whole, model), file)
        file.seek(0)
        again = torch.export.load(file).module()
        _check_agreement(whole, model, "torch", lambda x: again(torch.from_numpy(x)).detach().numpy())
    return file.getvalue()


def weights_file(network: nn.Module) -> bytes:
    """Return all numbers of a network by their names, as a safetensors file, which runs no code when it is read."""
    from safetensors.torch import save

    return save({name: tensor.contiguous().clone() for name, tensor in network.state_dict().items()})


def rebuilding(network: nn.Module, model: Model, outputs: Outputs) -> dict[str, Any]:
    """Return how to build the network again for the numbers of ``weights_file``; ``rebuilt`` does it."""
    members = network.members if isinstance(network, Mixture) else [network]
    return {
        "network": model.text,
        "shape": list(model.shape),
        "classes": model.classes,
        "columns": model.columns,
        "vocabulary": model.vocabulary,
        "cluster_part": model.cluster_part,
        "members": len(members),
        "mix": network.rule if isinstance(network, Mixture) else None,
        "answers": {"kind": outputs.kind, "means": list(outputs.means), "stds": list(outputs.stds)},
        "layers": str(members[0]).splitlines(),
    }


def rebuilt(description: dict[str, Any], weights: bytes, model: Model) -> nn.Module:
    """Return the network in evaluation mode; ``model`` is the one that the description names."""
    from safetensors.torch import load

    modules = [model.copy() for _ in range(description["members"])]
    network = modules[0] if description["mix"] is None else Mixture(modules, description["mix"], model.target)
    with model.blamed("does not fit the weights"):
        network.load_state_dict(load(weights))
    return network.eval()


def _program(whole: nn.Module, model: Model) -> torch.export.ExportedProgram:
    """Trace a network for any number of rows."""
    for parameter in whole.parameters():
        parameter.requires_grad_(False)
    rows = torch.export.Dim.DYNAMIC
    return torch.export.export(whole, (model.blank(3),), dynamic_shapes=({0: rows},))


@contextmanager
def _blamed(model: Model, kind: str, others: str) -> Iterator[None]:
    """Say in one line that a network cannot be exported, whatever the exporter says."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"model {model.text!r} cannot be exported as {kind} ({reason(error)}); use --format {others}"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep exporters from warning and logging: what matters is compared afterwards."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)


def _check_agreement(whole: nn.Module, model: Model, kind: str, run: Callable[[Array], Array]) -> None:
    """Refuse an exported network that does not answer as the original does."""
    if not _agrees(whole, model, run):
        raise ModelError(f"model {model.text!r} answers otherwise as {kind} than in PyTorch; use another --format")


@torch.no_grad()
def _agrees(whole: nn.Module, model: Model, run: Callable[[Array], Array]) -> bool:
    x = probes(model)
    expected, found = whole(x), torch.from_numpy(run(x.numpy()))
    scale = max(1.0, float(expected.abs().max()))
    return found.shape == expected.shape and torch.allclose(found / scale, expected / scale, rtol=0, atol=AGREE)


def probes(model: Model) -> Tensor:
    """Return made-up examples, the same every time."""
    count = PROBES * math.prod(model.shape)
    if model.vocabulary is not None:
        return (torch.arange(count) * 7919 % model.vocabulary).view(PROBES, *model.shape)
    return torch.randn(count, generator=torch.Generator().manual_seed(0)).view(PROBES, *model.shape)


def as_json(value: Any) -> bytes:
    """Return a value as an indented JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
