"""JAX by hand: one compiled function trains a share of the clients, a process on each core.

XLA's own convolution is more than ten times slower on a CPU than a product with the patches of the images, so this
does the latter. Clients of the small network train together (vmap), those of the others one after the other.
Parameters are a list in the order and with the shapes of torch's.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from benchmarks.peers.halves import Halves
from benchmarks.peers.protocol import Task, serve, task

TOGETHER = {"logistic": 10}
"""Clients that train in one batched product, where it is more than one."""

Params = list[Array]
Network = Callable[[Params, Array], Array]


def convolve(x: Array, kernel: Array, bias: Array, padding: int) -> Array:
    """Return the convolution of images ``(c, h, w, n)`` as one product with their patches."""
    outputs, inputs, rows, columns = kernel.shape
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width, n = x.shape[1] - rows + 1, x.shape[2] - columns + 1, x.shape[3]
    patches = [x[:, i : i + height, j : j + width] for i in range(rows) for j in range(columns)]
    flat = jnp.stack(patches, 1).reshape(inputs * rows * columns, -1)
    product = kernel.reshape(outputs, -1) @ flat
    return product.reshape(outputs, height, width, n) + bias[:, None, None, None]


def pool(x: Array) -> Array:
    """Return the maxima of 2 x 2 neighbours."""
    channels, height, width, n = x.shape
    return x.reshape(channels, height // 2, 2, width // 2, 2, n).max((2, 4))


def normalise(x: Array, scale: Array, shift: Array) -> Array:
    """Normalise each channel with the statistics of the batch."""
    mean, variance = x.mean((1, 2, 3), keepdims=True), x.var((1, 2, 3), keepdims=True)
    return (x - mean) * (scale[:, None, None, None] * lax.rsqrt(variance + 1e-5)) + shift[:, None, None, None]


def dense(p: Params, x: Array) -> Array:
    """Return the outputs of fully connected layers, with ReLU between them."""
    x = x.reshape(len(x), -1)
    for i in range(0, len(p) - 2, 2):
        x = jax.nn.relu(x @ p[i].T + p[i + 1])
    return x @ p[-2].T + p[-1]


def cnn(p: Params, x: Array) -> Array:
    """Two padded convolutions with normalisation and pooling (before ReLU, as in coterie), one linear layer."""
    x = jnp.moveaxis(x, 0, -1)
    for i in (0, 4):
        x = jax.nn.relu(pool(normalise(convolve(x, p[i], p[i + 1], 2), p[i + 2], p[i + 3])))
    return dense(p[8:], jnp.moveaxis(x, -1, 0))


def lenet(p: Params, x: Array) -> Array:
    """Two convolutions with pooling, three linear layers."""
    x = jnp.moveaxis(x, 0, -1)
    for i in (0, 2):
        x = jax.nn.relu(pool(convolve(x, p[i], p[i + 1], 0)))
    return dense(p[4:], jnp.moveaxis(x, -1, 0))


def client_of(network: Network, given: Task) -> Callable[[Params, Array, Array, Array], Array]:
    """Return the training of one client: a scan over its minibatches, ending with its parameters in one vector."""

    def loss(p: Params, x: Array, y: Array) -> Array:
        return -jnp.take_along_axis(jax.nn.log_softmax(network(p, x)), y[:, None], 1).mean()

    def client(start: Params, x: Array, y: Array, order: Array) -> Array:
        def step(state: tuple[Params, Params], batch: Array) -> tuple[tuple[Params, Params], None]:
            p, velocity = state
            slope = jax.grad(loss)(p, x[batch], y[batch])
            velocity = [given.momentum * v + g for v, g in zip(velocity, slope, strict=True)]
            return ([a - given.lr * v for a, v in zip(p, velocity, strict=True)], velocity), None

        (p, _), _ = lax.scan(step, (start, [jnp.zeros_like(a) for a in start]), order)
        return jnp.concatenate([a.ravel() for a in p])

    return client


def train(given: Task, share: range) -> Callable[[np.ndarray], None]:
    """Prepare to train a share of the clients; compilation is left to the first round."""
    x, y = given.examples_of(share)
    x, y = jnp.asarray(x), jnp.asarray(y.astype(np.int32))
    start = [jnp.asarray(a) for a in np.load(given.folder / "start.npz").values()]
    client = client_of({"cnn": cnn, "lenet": lenet}.get(given.model, dense), given)
    together, rng = TOGETHER.get(given.model, 1), np.random.default_rng(share.start)
    everyone = jax.jit(
        lambda p, *data: lax.map(lambda one: client(p, *one), data, batch_size=together if together > 1 else None)
    )

    def work(rows: np.ndarray) -> None:
        shape = (len(share), given.epochs, given.examples)
        order = rng.random(shape, dtype=np.float32).argsort(-1).astype(np.int32)
        rows[:] = everyone(start, x, y, order.reshape(len(share), given.steps, given.batch))

    return work


def main(given: Task) -> None:
    size = sum(a.size for a in np.load(given.folder / "start.npz").values())
    halves = Halves(given, train, size)
    serve(halves.round, halves.mean_model, "jax", "jaxlib")
    halves.close()


if __name__ == "__main__":
    main(task())
