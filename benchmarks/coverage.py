"""Print how often intervals of means over clients and over seeds hold the true mean, by simulation.

python benchmarks/coverage.py [--tries 2000]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from coterie.experiments.statistics import interval_over_clients, interval_over_seeds
from coterie.typing import Array

Draw = Callable[[np.random.Generator, int], Array]

SCORES: dict[str, tuple[Draw, float]] = {
    "normal": (lambda rng, n: rng.normal(0.8, 0.05, n), 0.8),
    "beta(8, 2)": (lambda rng, n: rng.beta(8, 2, n), 0.8),
    "beta(19, 1)": (lambda rng, n: rng.beta(19, 1, n), 0.95),
    "exponential": (lambda rng, n: rng.exponential(1.0, n), 1.0),
    "binomial(30)": (lambda rng, n: rng.binomial(30, rng.beta(8, 2, n)) / 30, 0.8),
}
"""Scores of clients, and their mean."""

WEIGHTS: dict[str, Draw] = {
    "equal": lambda rng, n: np.ones(n),
    "30 to 300": lambda rng, n: rng.uniform(30, 300, n),
    "lognormal(0.8)": lambda rng, n: rng.lognormal(4, 0.8, n),
}
"""Examples of clients, by which they count."""


def over_clients(shape: str, weights: str, clients: int, tries: int) -> tuple[float, float]:
    """Return the coverage of our interval, and of the percentile bootstrap with the same draws."""
    rng, (draw, mean), held = np.random.default_rng(clients), SCORES[shape], np.zeros(2)
    for _ in range(tries):
        values, own = draw(rng, clients), WEIGHTS[weights](rng, clients)
        found = interval_over_clients(values, np.zeros(clients), own)
        assert found is not None, "there are several clients"
        drawn = rng.integers(0, clients, (500, clients))
        plain = np.percentile((own[drawn] * values[drawn]).sum(1) / own[drawn].sum(1), [2.5, 97.5])
        held += [found.low <= mean <= found.high, plain[0] <= mean <= plain[1]]
    return float(held[0] / tries), float(held[1] / tries)


def over_seeds(shape: str, seeds: int, tries: int) -> float:
    """Return the coverage of the interval over seeds, of scores of a run that are drawn like those of clients."""
    rng, (draw, mean) = np.random.default_rng(seeds), SCORES[shape]
    found = [interval_over_seeds(draw(rng, seeds).tolist()) for _ in range(tries)]
    return float(np.mean([each is not None and each.low <= mean <= each.high for each in found]))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=2000)
    tries = parser.parse_args().tries
    print("| scores | weights | clients | ours | percentile bootstrap |\n|---|---|---|---|---|")
    for shape in SCORES:
        for weights in WEIGHTS:
            for clients in (10, 20, 50):
                ours, plain = over_clients(shape, weights, clients, tries)
                print(f"| {shape} | {weights} | {clients} | {ours:.3f} | {plain:.3f} |", flush=True)
    print("\n| scores | seeds | Student's t |\n|---|---|---|")
    for shape in SCORES:
        for seeds in (3, 5, 10):
            print(f"| {shape} | {seeds} | {over_seeds(shape, seeds, tries):.3f} |", flush=True)


if __name__ == "__main__":
    main()
