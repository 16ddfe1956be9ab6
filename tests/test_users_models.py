"""Users' networks: what is wrong is told in one line before anything is written, what is only odd is trained."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from coterie.cli.main import app
from coterie.experiments.run_folder import STATE, load_state
from coterie.models.zoo import build_model

HEAD = '''
import itertools, sys, threading
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    """A linear layer, and whatever is done with its outputs."""

    def __init__(self, shape, outputs, after=lambda out: out, before=lambda x: x):
        super().__init__()
        self.width = shape[-1] * shape[-2]
        self.layer, self.before, self.after = nn.Linear(self.width, outputs), before, after

    def forward(self, x):
        return self.after(self.layer(self.before(x.flatten(1))))


class Whole(nn.Module):
    """Digits as the numbers 0 to 16."""

    def forward(self, x):
        return (x.flatten(1) * 4).round().abs().clamp(max=16).long()


class Sparse(Net):
    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.table = nn.Parameter(torch.zeros(5, outputs))

    def forward(self, x):
        return super().forward(x) + F.embedding(torch.zeros(len(x)).long(), self.table, sparse=True)


class Late(Net):
    """It fails at its 41st call."""

    calls, error = 0, KeyError("too late")

    def forward(self, x):
        Late.calls += 1
        if Late.calls > 40:
            raise self.error
        return super().forward(x)


def fail(error):
    raise error


def outside(x):
    return F.embedding(x.long().sum(1) * 1000, torch.zeros(5, x.shape[1]))


count = itertools.count(1)
kept = []


def once(shape, outputs):
    if not kept:
        kept.append(Net(shape, outputs))
    return kept[0]


def build(shape, outputs):
'''

WRONG = {
    "a tuple": ("return Net(shape, outputs, lambda out: (out, out))", "gives a tuple where a tensor is needed"),
    "a dict": ("return Net(shape, outputs, lambda out: {'logits': out})", "gives a dict where a tensor is needed"),
    "nothing": ("return Net(shape, outputs, lambda out: None)", "gives a NoneType where a tensor is needed"),
    "whole numbers": ("return Net(shape, outputs, lambda out: out.long())", "outputs of int64; return float32"),
    "half precision": ("return Net(shape, outputs, lambda out: out.half())", "outputs of float16; return float32"),
    "complex numbers": ("return Net(shape, outputs, lambda out: out + 0j)", "outputs of complex64; return float32"),
    "detached": ("return Net(shape, outputs, lambda out: out.detach())", "gives outputs without a gradient"),
    "a complex parameter": (
        "net = Net(shape, outputs)\n    net.phase = nn.Parameter(torch.zeros(2) + 0j)\n    return net",
        "has the parameter phase of complex64; use float32",
    ),
    "doubles inside": (
        "return Net(shape, outputs, before=lambda x: x.double()).double()",
        "does not fit examples of shape (1, 8, 8): RuntimeError",
    ),
    "a lock": ("net = Net(shape, outputs)\n    net.lock = threading.Lock()\n    return net", "cannot be copied"),
    "another network": (
        "return Net(shape, outputs, nn.Sequential(*[nn.Identity() for _ in range(3)], nn.Linear(outputs, next(count)), "
        "nn.LazyLinear(outputs)))",
        "is another network each time",
    ),
    "the same module": ("return once(shape, outputs)", "is the same module each time; build a new one in each call"),
    "an exit": ("sys.exit('bye')", "cannot be built for examples of shape (1, 8, 8): SystemExit: bye"),
    "an exit in the middle": (
        "return Net(shape, outputs, lambda out: sys.exit(3))",
        "does not fit examples of shape (1, 8, 8): SystemExit: 3",
    ),
    "two lines": (
        "return Net(shape, outputs, lambda out: fail(KeyError('a\\nb')))",
        "does not fit examples of shape (1, 8, 8): KeyError",
    ),
    "a terminal's language": (
        "return Net(shape, outputs, lambda out: fail(ValueError('\\x1b[2J[/x]')))",
        "does not fit examples of shape (1, 8, 8): ValueError: \\x1b[2J[/x]",
    ),
    "a story without end": (
        "return Net(shape, outputs, lambda out: fail(ValueError('a' * 99999)))",
        "aaaaa ... aaaaa",
    ),
    "an error in training": (
        "net = Net(shape, outputs)\n"
        "    net.after = lambda out: fail(LookupError('no')) if out.requires_grad else out\n    return net",
        "cannot be trained: LookupError: no",
    ),
    "sparse gradients": (
        "return Sparse(shape, outputs)",
        "makes sparse gradients; embed with sparse=False",
    ),
    "no module": ("return 3", "must build a torch.nn.Module, not int"),
}
RIGHT = {
    "a parameter that is not used": (
        "net = Net(shape, outputs)\n    net.spare = nn.Parameter(torch.ones(3))\n    return net"
    ),
    "a lazy layer": "return nn.Sequential(nn.Flatten(), nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(outputs))",
    "a lazy convolution": (
        "return nn.Sequential(nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(outputs))"
    ),
    "doubles": "return Net(shape, outputs).double()",
    "mixed numbers": "return nn.Sequential(nn.Flatten(), nn.Linear(64, 6).double(), nn.Linear(6, outputs).bfloat16())",
    "a sparse embedding": (
        "return nn.Sequential(Whole(), nn.Embedding(20, 5, sparse=True), nn.Flatten(), nn.Linear(320, outputs))"
    ),
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run fedavg for two rounds with the network of these lines; what it told, and what it left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def call(body: str, *words: str):
        package = tmp_path / "nets_of_a_user"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "nets.py").write_text(f"{HEAD}    {body}\n")
        quick = ("--clients", "4", "--rounds", "2", "--steps", "2", "--quiet", "--model", "nets_of_a_user.nets:build")
        result = CliRunner().invoke(app, ["run", "fedavg", *quick, *words])
        return result, {path.name for path in tmp_path.iterdir()} - {"nets_of_a_user"}

    yield call
    for name in ("nets_of_a_user", "nets_of_a_user.nets"):
        sys.modules.pop(name, None)


def line_of(result) -> str:
    """The one line that a refused request is answered with."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: model 'nets_of_a_user.nets:build' ") or "must build" in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stderr.removesuffix("\n").isprintable()
    assert len(result.stderr) < 1600
    return result.stderr


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_network_is_told_in_one_line_and_nothing_is_written(run, name):
    body, told = WRONG[name]
    result, left = run(body)
    assert told in line_of(result)
    assert not left


@pytest.mark.parametrize("plan", ["lockstep", "workers"])
@pytest.mark.parametrize("name", RIGHT)
def test_an_odd_network_is_trained(run, name, plan):
    result, _ = run(RIGHT[name], "--plan", plan)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""


@pytest.mark.parametrize("plan", ["lockstep", "workers"])
def test_a_parameter_that_is_not_used_stays_as_it_is(run, tmp_path, plan):
    run(RIGHT["a parameter that is not used"], "--plan", plan, "--out", "kept")
    model, state = build_model("nets_of_a_user.nets:build", (1, 8, 8), 10), load_state(tmp_path / "kept" / STATE)
    module = model.with_row(state.stack.params[0], state.stack.buffers[0])
    assert module.spare.tolist() == [1, 1, 1]
    assert not np.array_equal(module.layer.bias.detach(), model.with_row(*model.initial(1)).layer.bias.detach())


@pytest.mark.parametrize("plan", ["lockstep", "workers"])
def test_what_only_the_data_show_is_told_in_one_line_too(run, plan):
    """Made-up examples are all zero: an index out of range is met in round 0."""
    result, _ = run("return Net(shape, outputs, before=outside)", "--plan", plan)
    assert "fails on the clients' data: IndexError: index out of range" in line_of(result)


@pytest.mark.parametrize("plan", ["lockstep", "workers"])
@pytest.mark.parametrize("error", ["KeyError", "RuntimeError", "SystemExit"])
def test_an_error_late_in_training_is_told_in_one_line(run, plan, error):
    body = f"Late.error = {error}('late')\n    return Late(shape, outputs)"
    result, _ = run(body, "--plan", plan, "--rounds", "20")
    if error == "RuntimeError" and result.exit_code == 1:  # in training it makes missing rows, until nobody is left
        (line,) = result.stderr.strip().splitlines()
        assert "clients answered" in line
        assert "RuntimeError: late" in line
    else:
        assert f"fails on the clients' data: {error}: " in line_of(result)
