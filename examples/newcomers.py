"""Place clients that were never seen: train without four of them, then ask where each belongs.

A newcomer trains or scores on its own data by the rule of the run's algorithm; nothing else is trained again.
"""

from __future__ import annotations

import numpy as np

import coterie as ct


def main() -> None:
    """Hold four clients back, train with the others, and place the four; then one that belongs nowhere."""
    everyone = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=1)
    held_back = np.array([9, 19, 29, 39])  # one of each hidden group
    known, late = everyone.select(np.delete(np.arange(40), held_back)), everyone.select(held_back)
    run = ct.run(ct.ifca(clusters=4), known, model="mlp", rounds=10, seed=1)

    for i, name in enumerate(late.names):
        placed = run.assign(*late.train.of(i))
        members = known.groups[run.labels == placed.cluster]  # the true groups: known in a simulation only
        right = "right" if (members == late.groups[i]).all() else "wrong"
        print(f"{name}: cluster {placed.cluster} ({right}), {placed.measure} {placed.served:.2f} on its own data")

    # Pixels turned inside out belong to no group, and the placement says so.
    x, y = late.train.of(0)
    print("an odd one:", run.assign(x.max() - x, y).warning)


if __name__ == "__main__":
    main()
