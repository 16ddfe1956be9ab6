"""Compare methods fairly: the same draws, starts and minibatches, over seeds, as a table and a picture.

`coterie compare` does this with gains, p-values, resuming and a finished picture. This is how to do it by hand, where
you want another measure or another plot.
"""

from __future__ import annotations

from statistics import mean, stdev

from matplotlib.figure import Figure

import coterie as ct

METHODS = {
    "one model for all": ct.fedavg(),
    "one model each": ct.local(),
    "clients choose": ct.ifca(clusters=4),
    "server clusters": ct.wecfl(clusters=4),
}
SEEDS = (1, 2, 3)
ROUNDS = 8


def main() -> None:
    """Train every method on every draw; print the mean and the spread of accuracy, and draw it round by round."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="round", ylabel="accuracy, mean of the seeds")
    for name, method in METHODS.items():
        runs = []
        for seed in SEEDS:  # a seed is a draw of clients, a first model and the minibatches: the same for every method
            clients = ct.load("digits").partition("rotation(0,90,180,270)", clients=20, seed=seed)
            runs.append(ct.run(method, clients, model="mlp", rounds=ROUNDS, seed=seed))
        final = [run.summary["accuracy"] for run in runs]
        print(f"{name:18} {mean(final):.3f} ± {stdev(final):.3f}")
        axes.plot([mean(run.history[i]["accuracy"] for run in runs) for i in range(ROUNDS)], label=name)
    axes.legend()
    figure.savefig("compare_methods.png")
    print("the rounds are drawn in compare_methods.png")


if __name__ == "__main__":
    main()
