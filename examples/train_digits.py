"""Trains a small convolutional network on scikit-learn's handwritten digits, each worker on its own share of them.

    autobyte-launch -n 2 -s 2 python examples/train_digits.py     # two workers, two servers
    python examples/train_digits.py                               # the same training in one process

What makes it a distributed training: the store's name, rank 0's first values for all, the share, and the division of
the summed gradients by the number of workers.
"""

from __future__ import annotations

import os
import sys
import time

import ps.mxnet  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import click
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from rich.progress import track
from sklearn.datasets import load_digits

HELD_OUT = 360


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return 1,797 images, (n, 1, 8, 8) float32 from 0 to 1, and their labels, in one random order for all ranks."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    return (images / 16).astype("float32").reshape(-1, 1, 8, 8)[order], labels.astype("float32")[order]


def network() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(32, kernel_size=3, padding=1, activation="relu"),
        gluon.nn.Conv2D(64, kernel_size=3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Dense(256, activation="relu"),
        gluon.nn.Dense(10),
    )
    return net


@click.command()
@click.option("--epochs", default=30, show_default=True)
@click.option("--batch-size", default=32, show_default=True, help="Per worker.")
@click.option("--learning-rate", default=0.001, show_default=True)
@click.option("--min-accuracy", default=0.0, show_default=True, help="Fail if the held-out accuracy stays below.")
def train(epochs: int, batch_size: int, learning_rate: float, min_accuracy: float) -> None:
    """Train a digit classifier and print its accuracy on held-out digits."""
    launched = "DMLC_PS_ROOT_URI" in os.environ  # what every process of a job is told
    store = mx.kv.create("dist_sync_autobyte" if launched else "device")
    workers, first = store.num_workers, store.rank == 0

    images, labels = digits()
    test_images, test_labels = mx.nd.array(images[:HELD_OUT]), labels[:HELD_OUT]
    share = slice(HELD_OUT + store.rank, len(labels) - (len(labels) - HELD_OUT) % workers, workers)
    np.random.seed(store.rank)  # each worker shuffles its share in its own way
    batches = gluon.data.DataLoader(
        gluon.data.ArrayDataset(images[share], labels[share]), batch_size, shuffle=True, last_batch="discard"
    )

    net = network()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(test_images)  # tells the layers their shapes
    if launched:
        ps.mxnet.broadcast_parameters(net.collect_params())
    trainer = gluon.Trainer(
        net.collect_params(), "adam", {"learning_rate": learning_rate}, kvstore=store, update_on_kvstore=False
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    seconds = []
    accuracy = 0.0
    for epoch in track(range(1, epochs + 1), "training", disable=not sys.stdout.isatty()):
        started = time.perf_counter()
        total = mx.nd.zeros(1)
        for batch, expected in batches:
            with autograd.record():
                loss = loss_of(net(batch), expected)
            loss.backward()
            trainer.step(batch_size * workers)
            total += loss.mean()
        mean_loss = total.asscalar() / len(batches)
        mx.nd.waitall()
        seconds.append((time.perf_counter() - started) / len(batches))
        accuracy = float((net(test_images).asnumpy().argmax(axis=1) == test_labels).mean())
        if first:
            print(f"epoch {epoch:2d}/{epochs}  loss {mean_loss:.4f}  accuracy {accuracy:.4f}", flush=True)

    if first:
        print(f"accuracy: {accuracy:.4f} on {HELD_OUT} held-out digits")
        print(f"seconds per step: {np.median(seconds):.4f} ({len(batches) * epochs} steps, {workers} workers)")
    if launched and first:
        moved = store.worker.statistics()
        print(f"bytes moved by this worker: {moved['bytes_sent']:,} sent, {moved['bytes_received']:,} received")
    if accuracy < min_accuracy:
        raise click.ClickException(f"accuracy {accuracy:.4f} is below {min_accuracy}")


if __name__ == "__main__":
    train()
