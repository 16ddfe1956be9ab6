"""Rounds of the simulator and of as many Ray workers, in turns: 10 steps of batch 32 for every client."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from coterie.data import load
from coterie.engine.plan import available_cores
from coterie.models.zoo import build_model
from coterie.protocol.stack import Sent, Stack
from coterie.protocol.task import Fit, Task
from coterie.runtimes.ray import RayFederation
from coterie.runtimes.simulator import Simulator
from coterie.seeding import Key

CASES = (("cnn", 40), ("mlp(512,128)", 100), ("logistic", 2000))
TURNS = 7


def main() -> None:
    for name, count in CASES:
        data = load("fashion-mnist").partition("iid(minimum=1)", clients=count, seed=1)
        model = build_model(name, data.shape, data.classes)
        stack = Stack(*(vector[None] for vector in model.initial(1)))
        near, far = Simulator(data, model), RayFederation(data, model)
        seconds: dict[object, list[float]] = {near: [], far: []}
        for turn in range(TURNS):
            for each in (near, far) if turn % 2 else (far, near):
                begun = perf_counter()
                each.ask(Task(fit=(Fit(),)), Sent(stack), np.zeros(count, int), np.arange(count), Key(1, turn))
                seconds[each].append(perf_counter() - begun)
        far.close()
        ours, theirs = (float(np.median(seconds[each][1:])) for each in (near, far))
        print(f"{name:14}{count:6} clients: simulator {ours:.2f} s, ray {theirs:.2f} s, {ours / theirs:.2f} x as fast")


if __name__ == "__main__":
    print(f"{available_cores()} threads, {available_cores()} Ray workers; medians of {TURNS - 1}, the first left out")
    main()
