"""Find the hidden groups of a federation, and use the model of one client.

Forty clients hold handwritten digits; ten each see them turned by 0, 90, 180 or 270 degrees. Nobody tells the
algorithm who: it clusters what the clients learn. Runs in seconds, without a network.
"""

from __future__ import annotations

import torch

import coterie as ct


def main() -> None:
    """Train one model for all and four for groups on the same draw, and print how they serve the clients."""
    clients = ct.load("digits").partition("rotation(0,90,180,270)", clients=40, seed=1)
    for algorithm in (ct.fedavg(), ct.wecfl(clusters=4)):
        run = ct.run(algorithm, clients, model="mlp", rounds=10, seed=1)
        accuracy, worst = run.summary["accuracy"], run.summary["worst_client"]
        print(f"{algorithm.name}: accuracy {accuracy:.2f}, worst client {worst:.2f}")

    # 1.0 means that the clusters are the four rotations exactly. True groups are known because this is a simulation.
    print(f"agreement with the hidden rotations: {run.summary['ari']:.1f}")

    # What a client would deploy is an ordinary torch module; here on the first test example of client 3.
    x, y = clients.test.of(3)
    guess = run.model_for(3)(torch.as_tensor(x[:1])).argmax().item()
    print(f"client 3 sees a {y[0]}, its cluster's model says {guess}")


if __name__ == "__main__":
    main()
