"""Microseconds of one core for training on one example, as `reproducing.costs` has them.

`python benchmarks/reproduce_costs.py`: each network of the papers trains a few clients for a round of some steps, in
processor time of one thread; the difference between a long and a short run leaves out what a run takes beside training.
"""

from __future__ import annotations

import time

import torch

from coterie.experiments.run import run_settings
from coterie.experiments.settings import Settings

NETWORKS = {
    "logistic": ("mnist", 200),
    "mlp(512,128)": ("mnist", 40),
    "cnn": ("mnist", 20),
    "lenet": ("cifar-10", 40),
    "cnn-lcfl": ("mnist", 10),
    "cnn-joint": ("mnist", 4),
    "tiny-vgg": ("mnist", 10),
    "resnet34": ("cifar-10", 1),
}
"""Networks, with the data and the steps of the longer run."""

CLIENTS, BATCH = 4, 32


def seconds(model: str, data: str, steps: int) -> float:
    """Return the processor time of a run."""
    settings = Settings(
        "fedavg",
        data=data,
        partition="iid+few(64)",
        clients=CLIENTS,
        model=model,
        rounds=1,
        steps=steps,
        batch=BATCH,
        threads=1,
        apart=False,
    )
    began = time.process_time()
    run_settings(settings)
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    for model, (data, steps) in NETWORKS.items():
        seconds(model, data, 1)
        short, long = seconds(model, data, steps), seconds(model, data, 5 * steps)
        print(f"{model:<14} {1e6 * (long - short) / (4 * steps * CLIENTS * BATCH):10.1f} microseconds", flush=True)


if __name__ == "__main__":
    main()
