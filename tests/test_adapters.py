"""Low-rank adapters and tied weights: only what is trained is in the vectors, once, and every plan trains it right."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import coterie as ct
from coterie.engine.engine import Engine
from coterie.models.given import as_model
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.seeding import Key

FEW = {"rounds": 2, "steps": 2, "batch": 8}
PLANS = ["native", "workers", "lockstep", "single"]
TOKENS, WIDTH, LENGTH = 17, 16, 64


class Adapted(nn.Module):
    """A frozen linear layer and the product of two small matrices, of which one starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


class Tied(nn.Module):
    """Two layers and an output with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64, bias=False), nn.Linear(64, 64)
        self.two.weight = self.one.weight
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(torch.tanh(self.two(torch.tanh(self.one(x.flatten(1))))))


class Transformer(nn.Module):
    """A tiny transformer over tokens, which come as floats: the brightness of each pixel of a digit."""

    def __init__(self, outputs: int = 10, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) / 4)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3 * layers))
        self.classifier = nn.Linear(WIDTH, outputs)

    def forward(self, x):
        h = self.embed((x.flatten(1) * 4).round().clamp(0, TOKENS - 1).long()) + self.place
        for query, key, value in zip(*[iter(self.blocks)] * 3, strict=True):
            h = F.layer_norm(h + F.scaled_dot_product_attention(query(h), key(h), value(h)), (WIDTH,))
        return self.classifier(h.mean(1))


@pytest.fixture(scope="module")
def digits():
    return ct.load("digits").partition("rotation(0,180)", clients=4, seed=1)


def dense(adapted: bool) -> nn.Module:
    torch.manual_seed(4)
    hidden = nn.Linear(64, 32)
    return nn.Sequential(nn.Flatten(), Adapted(hidden) if adapted else hidden, nn.ReLU(), nn.Linear(32, 10))


class TestAdapters:
    @pytest.mark.parametrize("plan", PLANS)
    def test_only_the_small_matrices_and_the_head_travel(self, digits, plan):
        adapted, plain = (ct.run("wecfl", digits, dense(a), clusters=2, plan=plan, **FEW) for a in (True, False))
        assert [slot.name for slot in adapted.model.slots] == ["1.down", "1.up", "3.weight", "3.bias"]
        assert (adapted.model.layout.size, plain.model.layout.size) == (192 + 330, 2080 + 330)
        for name in ("bytes_down", "bytes_up"):
            ratio = plain.history[1][name] / adapted.history[1][name]
            assert ratio == pytest.approx(2410 / 522, rel=0.01)

    @pytest.mark.parametrize("plan", PLANS)
    def test_the_base_stays_and_the_adapter_learns(self, digits, plan):
        net = dense(True)
        served = ct.run("fedavg", digits, net, plan=plan, **FEW).model_for(0)
        assert torch.equal(served[1].base.weight, net[1].base.weight)
        assert not torch.equal(served[1].up, net[1].up)

    @pytest.mark.parametrize("name", ["ifca", "wecfl+cks", "ifca+cam(warmup=1)", "fesem+finetune(steps=1)"])
    def test_every_kind_of_method_trains_it(self, digits, name):
        assert np.isfinite(ct.run(name, digits, dense(True), clusters=2, **FEW).summary["accuracy"])


class TestTied:
    @pytest.mark.parametrize("plan", PLANS)
    def test_one_slot_is_trained_as_torch_trains_it(self, digits, plan):
        torch.manual_seed(1)
        net = Tied()
        model = as_model(net, (1, 8, 8), 10)
        assert [slot.name for slot in model.slots] == ["one.weight", "two.bias", "out.weight", "out.bias"]
        stack = Stack(*(part[None] for part in model.initial(7)))
        fit = Fit(steps=3, batch=10_000, lr=0.1, momentum=0.0)
        engine = Engine(model, digits, threads=2, plan=plan)
        found = engine.run(Task(fit=(fit,)), Sent(stack), np.zeros(4, int), np.arange(4), Key(1, 0)).params
        for client in range(4):
            expected = _descend(deepcopy(net), *digits.train.of(client))
            served = model.with_row(found[client], np.zeros(0, np.float32))
            assert served.one.weight is served.two.weight
            for name, parameter in served.named_parameters():
                torch.testing.assert_close(parameter, dict(expected.named_parameters())[name], atol=1e-5, rtol=1e-4)

    def test_it_is_tied_in_every_copy(self):
        model = as_model(Tied(), (1, 8, 8), 10)
        for module in (model.copy(), model.with_row(*model.initial(1)), deepcopy(model.with_row(*model.initial(1)))):
            assert module.one.weight is module.two.weight


def _descend(net: nn.Module, x, y) -> nn.Module:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    return net


class TestPeft:
    @pytest.fixture
    def adapted(self):
        peft = pytest.importorskip("peft")
        torch.manual_seed(2)
        targets = [f"blocks.{i}" for i in range(6)]
        config = peft.LoraConfig(r=2, target_modules=targets, modules_to_save=["classifier"], lora_dropout=0.1)
        return peft.get_peft_model(Transformer(), config)

    def test_only_its_adapters_and_the_saved_head_are_in_the_vectors(self, digits, adapted):
        done = ct.run("wecfl", digits, adapted, clusters=2, **FEW)
        names = [slot.name for slot in done.model.slots]
        assert all("lora_" in name or "modules_to_save" in name for name in names)
        assert done.model.layout.size == sum(p.numel() for p in adapted.parameters() if p.requires_grad)
        assert done.model.frozen
        trained = done.model_for(0).state_dict()
        for name, tensor in adapted.state_dict().items():
            assert torch.equal(tensor, trained[name]) != (name in names), name

    def test_a_round_costs_the_bytes_of_what_is_trained(self, digits, adapted):
        small, large = (ct.run("wecfl", digits, net, clusters=2, **FEW) for net in (adapted, Transformer()))
        ratio = large.model.layout.size / small.model.layout.size
        for name in ("bytes_down", "bytes_up"):
            assert large.history[1][name] / small.history[1][name] == pytest.approx(ratio, rel=0.01)
