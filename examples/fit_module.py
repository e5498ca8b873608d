"""Trains a symbol with ``Module.fit`` on scikit-learn's handwritten digits; the servers update the weights.

    autobyte-launch -n 2 -s 2 python examples/fit_module.py     # two workers, two servers
    python examples/fit_module.py                               # the same training in one process

Against MXNet's own stores only the name differs. ``fit`` gives everybody rank 0's first values and has the optimizer
run at the servers, with the gradients' sum divided by the samples of all workers.
"""

from __future__ import annotations

import os

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import click
import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits

HELD_OUT = 360


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return 1,797 images, (n, 64) float32 from 0 to 1, and their labels, in one random order for all ranks."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    return (images / 16).astype("float32")[order], labels.astype("float32")[order]


def network() -> mx.sym.Symbol:
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=128, name="hidden1")
    hidden = mx.sym.Activation(hidden, act_type="relu")
    hidden = mx.sym.FullyConnected(hidden, num_hidden=64, name="hidden2")
    hidden = mx.sym.Activation(hidden, act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=10, name="classes"), name="softmax")


@click.command()
@click.option("--epochs", default=20, show_default=True)
@click.option("--batch-size", default=32, show_default=True, help="Per worker.")
@click.option("--learning-rate", default=0.1, show_default=True)
@click.option("--min-accuracy", default=0.0, show_default=True, help="Fail if the held-out accuracy stays below.")
def train(epochs: int, batch_size: int, learning_rate: float, min_accuracy: float) -> None:
    """Train a digit classifier and print its accuracy on held-out digits."""
    store = mx.kv.create("dist_sync_autobyte" if "DMLC_ROLE" in os.environ else "local")
    workers, first = store.num_workers, store.rank == 0

    images, labels = digits()
    share = slice(HELD_OUT + store.rank, len(labels) - (len(labels) - HELD_OUT) % workers, workers)
    np.random.seed(store.rank)  # each worker shuffles its share in its own way
    batches = mx.io.NDArrayIter(images[share], labels[share], batch_size, shuffle=True, last_batch_handle="discard")
    held_out = mx.io.NDArrayIter(images[:HELD_OUT], labels[:HELD_OUT], batch_size=HELD_OUT)

    def report(epoch: int, *_: object) -> None:
        if first:
            print(f"epoch {epoch + 1:2d}/{epochs}  accuracy {accuracy():.4f}", flush=True)

    def accuracy() -> float:
        return dict(module.score(held_out, "acc"))["accuracy"]

    module = mx.mod.Module(network())
    module.fit(
        batches,
        kvstore=store,
        optimizer="sgd",
        optimizer_params={"learning_rate": learning_rate, "momentum": 0.9},
        initializer=mx.init.Xavier(),
        epoch_end_callback=report,
        num_epoch=epochs,
    )

    result = accuracy()
    if first:
        print(f"accuracy: {result:.4f} on {HELD_OUT} held-out digits")
    if result < min_accuracy:
        raise click.ClickException(f"accuracy {result:.4f} is below {min_accuracy}")


if __name__ == "__main__":
    train()
