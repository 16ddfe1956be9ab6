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
import itertools, sys, threading, warnings
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


class Toggled(Net):
    """It thaws, or freezes, its layer when it runs."""

    def __init__(self, shape, outputs, to):
        super().__init__(shape, outputs)
        self.other, self.wanted = nn.Linear(outputs, outputs).requires_grad_(not to), to

    def forward(self, x):
        self.other.requires_grad_(self.wanted)
        return super().forward(x) + 0 * self.other(super().forward(x))


class Grown(Net):
    """It makes a buffer of the first examples that it sees."""

    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.register_buffer("seen", None)

    def forward(self, x):
        if self.seen is None:
            self.seen = x.flatten(1).mean(0)
        return super().forward(x - self.seen.view(x.shape[1:]))


class Shared(Net):
    """It is never copied."""

    def __deepcopy__(self, memo):
        return self


class Untied(nn.Module):
    """Two layers with one weight, which its copies do not have in common."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.out(self.two(torch.relu(self.one(x.flatten(1)))))

    def __deepcopy__(self, memo):
        other = Untied()
        other.load_state_dict(self.state_dict())
        other.two.weight = nn.Parameter(other.one.weight.detach().clone())
        return other


class Turned(Net):
    """Its buffer of complex numbers must stay complex."""

    def __init__(self, shape, outputs):
        super().__init__(shape, outputs)
        self.register_buffer("phase", torch.full((self.width,), 1j))

    def forward(self, x):
        return super().forward((x.flatten(1) * self.phase).imag)


def with_views(shape, outputs, of):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, outputs))
    net[2].weight = nn.Parameter(of(net[1].weight.data[:outputs]))
    return net


def quantised(outputs):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, outputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net[1] = torch.ao.nn.quantized.dynamic.Linear(64, 8)
    return net


def lazy_frozen(outputs):
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.Linear(8, outputs))
    for parameter in net[1].parameters():
        parameter.requires_grad = False
    return net


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
    "a view of another parameter": (
        "return with_views(shape, outputs, lambda part: part)",
        "has 1.weight in the memory of 2.weight; give it numbers of its own with .clone()",
    ),
    "one number many times": (
        "net = Net(shape, outputs)\n    net.layer.bias = nn.Parameter(torch.zeros(1).expand(outputs))\n    return net",
        "has layer.bias, which is one number many times",
    ),
    "a layer that thaws": (
        "return Toggled(shape, outputs, True)",
        "changes requires_grad of other.bias from False to True while it trains; decide it where the network is built",
    ),
    "a layer that freezes": (
        "return Toggled(shape, outputs, False)",
        "changes requires_grad of other.bias from True to False while it trains",
    ),
    "a buffer made on the way": ("return Grown(shape, outputs)", "changes the shape of seen from None to (64,)"),
    "no copy": ("return Shared(shape, outputs)", "is not copied whole by copy.deepcopy; leave out its __deepcopy__"),
    "a copy that unties": ("return Untied()", "is not copied whole by copy.deepcopy"),
    "quantised": ("return quantised(outputs)", "has the quantised layer 1 (Linear); train it in float32"),
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
    "complex buffers": "return Turned(shape, outputs)",
    "a frozen lazy layer": "return lazy_frozen(outputs)",
    "a copied view": "return with_views(shape, outputs, torch.clone)",
    "no buffer": "net = Net(shape, outputs)\n    net.register_buffer('nothing', None)\n    return net",
    "frozen half precision": (
        "return nn.Sequential(nn.Flatten(), nn.Linear(64, 6).half().requires_grad_(False), nn.Linear(6, outputs))"
    ),
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


@pytest.mark.parametrize("plan", ["lockstep", "native", "workers"])
@pytest.mark.parametrize("name", RIGHT)
def test_an_odd_network_is_trained(run, name, plan):
    result, _ = run(RIGHT[name], "--plan", plan)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""


@pytest.mark.parametrize("plan", ["lockstep", "native", "workers"])
def test_a_parameter_that_is_not_used_stays_as_it_is(run, tmp_path, plan):
    run(RIGHT["a parameter that is not used"], "--plan", plan, "--out", "kept")
    model, state = build_model("nets_of_a_user.nets:build", (1, 8, 8), 10), load_state(tmp_path / "kept" / STATE)
    module = model.with_row(state.stack.params[0], state.stack.buffers[0])
    assert module.spare.tolist() == [1, 1, 1]
    assert not np.array_equal(module.layer.bias.detach(), model.with_row(*model.initial(1)).layer.bias.detach())


@pytest.mark.parametrize("plan", ["lockstep", "native", "workers"])
def test_what_only_the_data_show_is_told_in_one_line_too(run, plan):
    """Made-up examples are all zero: an index out of range is met in round 0."""
    result, _ = run("return Net(shape, outputs, before=outside)", "--plan", plan)
    assert "fails on the clients' data: IndexError: index out of range" in line_of(result)


@pytest.mark.parametrize("plan", ["lockstep", "native", "workers"])
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
