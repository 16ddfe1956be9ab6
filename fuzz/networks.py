"""Users' networks: small modules of random layers that give odd outputs or fail at some call.

None prints, warns or compiles itself: what a user's own code says is the user's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from fuzz import strange
from fuzz.judge import Case, command

HEAD = """\
import sys, threading
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

calls = 0


class Net(nn.Module):
    def __init__(self, layers, after):
        super().__init__()
        self.layers, self.after = layers, after

    def forward(self, x):
        global calls
        calls += 1
        {early}
        return self.after(self.layers(x))


def fail(error):
    raise error


def build(shape, outputs):
    {before}
    net = Net(nn.Sequential({layers}), lambda out: {after})
    {last}
    return net
"""
LAYERS = (
    *("nn.Flatten()", "nn.Linear(64, 16)", "nn.Linear(16, 16)", "nn.ReLU()", "nn.Tanh()", "nn.Dropout(0.5)"),
    *("nn.LayerNorm(16)", "nn.BatchNorm1d(16)", "nn.Identity()", "nn.LazyLinear(16)", "nn.Conv2d(1, 2, 3)"),
    *("nn.AdaptiveAvgPool2d(1)", "nn.GRU(16, 16)", "nn.Embedding(4, 16)", "nn.Softmax(1)", "nn.BatchNorm2d(1)"),
    *("nn.Linear(16, 16).double()", "nn.Linear(16, 16).half()", "nn.InstanceNorm2d(1)", "nn.MaxPool2d(2)"),
)
AFTER = (
    *("out * float('nan')", "out * 1e30", "out / 0", "out.long()", "out.double()", "out.half()", "out + 0j"),
    *("out.detach()", "(out, out)", "{'logits': out}", "None", "out[:1]", "out.T", "out.mean()", "out[:, :0]"),
    *("out.unsqueeze(0)", "out.numpy()", "out.detach().numpy()", "'out'", "out.to('meta')", "out.to_sparse()"),
    *("torch.cat([out, out], 1)", "fail(KeyError('a\\nb'))", "fail(ValueError('[/x] \\x1b[31m'))", "sys.exit(3)"),
    *("fail(MemoryError())", "fail(RecursionError('deep'))", "out.log()", "F.one_hot(out.argmax(1), 10).float()"),
    *("torch.zeros(len(out), 10, requires_grad=True)", "out.clamp(0, 0)", "out + torch.randn_like(out)"),
    *("fail(type('Odd', (Exception,), {})('x' * 9000))", "fail(StopIteration())", "fail(AssertionError())"),
)
EARLY = (
    *("if calls > {n}: raise ValueError('late')", "if calls == {n}: x = x.double()", "if calls > {n}: sys.exit(1)"),
    *("if not self.training: raise OSError(5, 'eval')", "x = x.reshape(-1)", "x.add_(1)"),
    *("torch.manual_seed(0)", "if calls > {n}: return 'x'", "if len(x) == {n}: raise IndexError"),
    *("torch.set_num_threads(1)", "if calls > {n}: x = x * float('inf')"),
)
BEFORE = (
    *("raise KeyError('no')", "return None", "return nn.Linear", "sys.exit('bye')", "return 7", "shape = shape[1:]"),
    *("outputs = outputs + 1", "torch.set_default_dtype(torch.float64)"),
    *("return build(shape, outputs)", "return nn.Sequential()", "raise SystemExit"),
)
LAST = (
    *("net.lock = threading.Lock()", "net.double()", "net.requires_grad_(False)", "net.half()", "net.eval()"),
    *("net.extra = nn.Parameter(torch.zeros(0))", "net.extra = nn.Parameter(torch.zeros(2) + 0j)", "net.to('meta')"),
    *("net.extra = nn.Parameter(torch.full((3,), float('nan')))", "net.register_buffer('b', torch.zeros(3).long())"),
    *("net.register_buffer('b', None)", "net.extra = net.layers[0]", "net.forward = None", "del net.after"),
    *("torch.nn.utils.parametrizations.weight_norm(net.layers[-1])", "net.register_buffer('b', torch.tensor(1.0))"),
    *(
        "net = torch.jit.script(net.layers)",
        "net.extra = nn.Parameter(torch.zeros(9, 9).T)",
    ),
)
ODD = {"early": EARLY, "before": BEFORE, "after": AFTER, "last": LAST}
"""What a network may do in the place of each part of its text."""

ALGORITHMS = ("fedavg", "ifca", "wecfl", "wecfl+cam", "lcfl", "sattler", "ifca+con-rep", "fedavg+finetune", "joint")


def prepare(place: Path) -> None:
    """Nothing is needed."""


def make(rng: Random, prepared: Path) -> Case:
    """A module file with a function that builds a network, and a run that uses it."""
    layers = ["nn.Flatten()", "nn.Linear(64, 16)", "nn.ReLU()", "nn.Linear(16, outputs)"]
    parts = {"early": "pass", "before": "pass", "after": "out", "last": "pass"}
    for what in rng.sample(("layers", *ODD), rng.choice((0, 1, 1, 1, 2))):
        if what == "layers":
            place = rng.randrange(len(layers) + 1)
            layers[place : place + rng.choice((0, 0, 1))] = [rng.choice(LAYERS)]
        else:
            parts[what] = rng.choice(ODD[what]).replace("{n}", str(rng.choice((0, 1, 3, 8, 12, 20, 40))))
    text = HEAD.replace("{layers}", ", ".join(layers))
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    if rng.random() < 0.05:
        text = strange.damaged_text(rng, text)
    name = f"users_{rng.randrange(10**9)}"
    Path(f"{name}.py").write_bytes(text.encode("utf-8", "surrogatepass"))
    sys.path.insert(0, "")
    sys.dont_write_bytecode = True
    what = rng.choice((*("build",) * 20, "nothing", "Net", "calls", "fail", "np"))
    plan = rng.choice(([], [], ["--plan", "lockstep"], ["--plan", "single"], ["--diagnose"], ["--advise"]))
    words = ["run", rng.choice(ALGORITHMS), "--model", f"{name}:{what}", "--clients", "4", "--clusters", "2"]
    words += ["--rounds", rng.choice("12"), "--steps", "2", "--threads", "1", "--quiet", "--out", "out", *plan]
    return Case(f"coterie {' '.join(words)} with {name}.py:\n{text}", command(words))
