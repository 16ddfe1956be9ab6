"""Pre-trained networks, side by side: features of a frozen trunk kept or not, and low-rank adapters or all weights.

The images are made up, 28 x 28, of ten classes; the trunk is two convolutions, or two dense layers, the head linear.
In each turn every engine does the same round in another order: choose among two models, 10 steps of batch 32, and an
evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coterie as ct
from coterie.data.federated import Federated, Split
from coterie.engine.engine import Engine
from coterie.engine.plan import available_cores
from coterie.models.given import as_model
from coterie.models.model import Model
from coterie.protocol.report import Report
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Loss, Task
from coterie.seeding import Key
from coterie.typing import Array

CLIENTS, EXAMPLES, CLASSES, SHAPE = 24, 100, 10, (1, 28, 28)
TURNS = 5
TASK = Task(choose=(Loss(),), fit=(Fit(steps=10, batch=32),))
TEST = Task(report=Report(params=None, evaluate_on="test"))


class Round(NamedTuple):
    """The seconds of a round, the clients' models and their metrics."""

    seconds: float
    params: Array
    metrics: Array


def images() -> Federated:
    rng = np.random.default_rng(0)
    prototypes = rng.normal(size=(CLASSES, *SHAPE))

    def split(examples: int) -> Split:
        kinds = rng.integers(CLASSES, size=(CLIENTS, examples))
        return Split.join(
            [((prototypes[k] + rng.normal(size=(examples, *SHAPE))).astype(np.float32), k) for k in kinds]
        )

    names = tuple(f"client-{i:02}" for i in range(CLIENTS))
    return Federated("made up", "iid", names, split(EXAMPLES), split(EXAMPLES // 4), CLASSES)


def trunk_and_head() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.MaxPool2d(2), nn.ReLU()]
    second = [nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(nn.Sequential(*first, *second).eval().requires_grad_(False), nn.Flatten(), nn.Linear(1568, 10))


def dense_trunk_and_head() -> nn.Module:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU())
    return nn.Sequential(trunk.eval().requires_grad_(False), nn.Linear(100, 10))


def one_round(engine: Engine, stack: Stack, key: Key) -> Round:
    everyone, begun = np.arange(CLIENTS), perf_counter()
    replies = engine.run(TASK, Sent(stack), np.zeros(CLIENTS, int), everyone, key)
    metrics = engine.run(TEST, Sent(stack), everyone % 2, everyone, key).metrics
    assert replies.params is not None
    assert metrics is not None
    return Round(perf_counter() - begun, replies.params.copy(), metrics)


def compare_features(data: Federated, model: Model, plan: str) -> None:
    """Print the seconds of a round with and without kept features, and how far the numbers are apart."""
    engines = [Engine(model, data, plan=plan, reuse=reuse) for reuse in (True, False)]
    stack = Stack(*map(np.stack, zip(*(model.initial(seed) for seed in (1, 2)), strict=True)))
    done: list[list[Round]] = [[], []]
    for turn in range(TURNS):
        for which in (0, 1) if turn % 2 else (1, 0):
            done[which].append(one_round(engines[which], stack, Key(1, turn)))
    (first, *kept), (_, *anew) = done
    seconds = [float(np.median([each.seconds for each in rounds])) for rounds in (kept, anew)]
    apart = max(np.abs(a.params - b.params).max() for a, b in zip(kept, anew, strict=True))
    scores = max(np.abs(a.metrics[:, 0] - b.metrics[:, 0]).max() for a, b in zip(kept, anew, strict=True))
    print(
        f"plan {plan:8} kept {seconds[0]:.3f} s (the first round {first.seconds:.2f} s), anew {seconds[1]:.3f} s: "
        f"{seconds[1] / seconds[0]:.1f} x as fast; parameters differ by {apart:.1e} of "
        f"{np.abs(anew[0].params).max():.1e}, accuracies by {scores:.1e}"
    )


class Adapted(nn.Module):
    """A frozen linear layer and the product of two small matrices."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the layer, and of the adapter."""
        found: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return found


class Block(nn.Module):
    """Attention and two dense layers, each beside a short cut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after both."""
        x = self.first(x + F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x)))
        found: Tensor = self.second(x + self.dense(x))
        return found


class Transformer(nn.Module):
    """A small transformer over 64 tokens, which come as floats."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(17, width), nn.Parameter(torch.randn(64, width) / 8)
        self.blocks, self.classifier = nn.Sequential(Block(width), Block(width)), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score of each class."""
        tokens = (x.flatten(1) * 4).round().clamp(0, 16).long()
        found: Tensor = self.classifier(self.blocks(self.embed(tokens) + self.place).mean(1))
        return found


def by_hand() -> nn.Module:
    net = Transformer().requires_grad_(False)
    for block in net.blocks:
        block.query, block.value = Adapted(block.query), Adapted(block.value)
    net.classifier.requires_grad_(True)
    return net


def by_peft() -> nn.Module:
    import peft

    config = peft.LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    found: nn.Module = peft.get_peft_model(Transformer(), config)
    return found


def compare_bytes() -> None:
    """Print the bytes of a round of wecfl with all weights, and with adapters and head alone."""
    clients = ct.load("digits").partition("rotation(0,180)", clients=CLIENTS, seed=1)
    nets: dict[str, Callable[[], nn.Module]] = {"all weights": Transformer, "LoRA by hand": by_hand, "peft": by_peft}
    most = 0
    for name, make in nets.items():
        torch.manual_seed(0)
        try:
            net = make()
        except ModuleNotFoundError:
            print(f"{name:13} is not installed")
            continue
        run = ct.run("wecfl", clients, net, rounds=2, clusters=2, steps=2, batch=8)
        moved = run.history[-1]["bytes_down"] + run.history[-1]["bytes_up"]
        most = most or moved
        print(f"{name:13} {run.model.layout.size:7} numbers, {moved:10} bytes a round, 1 / {most / moved:.1f} of all")


if __name__ == "__main__":
    print(f"{CLIENTS} clients, {available_cores()} threads; medians of {TURNS - 1} turns, the first left out")
    federated = images()
    for kind, net in (("convolutions", trunk_and_head()), ("dense layers", dense_trunk_and_head())):
        for plan in ("workers", "auto"):
            print(f"a trunk of {kind}: ", end="")
            compare_features(federated, as_model(net, SHAPE, CLASSES), plan)
    compare_bytes()
