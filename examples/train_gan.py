"""Two networks against each other, each with its own Trainer and store: a GAN that writes the digits it is asked for.

    autobyte-launch -n 2 -s 2 python examples/train_gan.py     # two workers, two servers
    python examples/train_gan.py                               # the same training in one process

Each Trainer numbers its parameters from 0; that they do not meet at the servers is what the two stores are for. How
good the generator is, a classifier says that has seen real digits only: it reads a share of the images as was asked.
"""

from __future__ import annotations

import os
import sys

import ps.mxnet  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import click
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

NOISE = 16
ASKED = 500


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return 1,797 images, (n, 64) float32 from -1 to 1, and their labels."""
    images, labels = load_digits(return_X_y=True)
    return (images / 8 - 1).astype("float32"), labels.astype("float32")


def generator() -> gluon.Block:
    net = nn.HybridSequential()
    net.add(nn.Dense(128, activation="relu", in_units=NOISE + 10))
    net.add(nn.Dense(128, activation="relu", in_units=128))
    net.add(nn.Dense(64, activation="tanh", in_units=128))
    return net


def discriminator() -> gluon.Block:
    net = nn.HybridSequential()
    net.add(nn.Dense(128, in_units=64 + 10), nn.LeakyReLU(0.2))
    net.add(nn.Dense(128, in_units=128), nn.LeakyReLU(0.2), nn.Dropout(0.3))
    net.add(nn.Dense(1, in_units=128))
    return net


def labelled(inputs: mx.nd.NDArray, labels: mx.nd.NDArray) -> mx.nd.NDArray:
    """Return the inputs with the labels, one-hot, beside them: what both networks are given."""
    return mx.nd.concat(inputs, mx.nd.one_hot(labels, 10), dim=1)


@click.command()
@click.option("--epochs", default=60, show_default=True)
@click.option("--batch-size", default=64, show_default=True, help="Per worker.")
@click.option("--learning-rate", default=0.004, show_default=True)
@click.option("--min-share", default=0.0, show_default=True, help="Fail if fewer images are read as was asked.")
def train(epochs: int, batch_size: int, learning_rate: float, min_share: float) -> None:
    """Train a generator of digits and print how many of its images a classifier reads as was asked."""
    launched = "DMLC_ROLE" in os.environ
    stores = [mx.kv.create("dist_sync_autobyte" if launched else "device") for _ in range(2)]
    rank, workers = stores[0].rank, stores[0].num_workers

    images, labels = digits()
    judge = LogisticRegression(max_iter=300).fit(images, labels)
    share = slice(rank, len(labels) - len(labels) % workers, workers)
    np.random.seed(rank)  # each worker shuffles its share, and draws its noise, in its own way
    mx.random.seed(rank)
    batches = gluon.data.DataLoader(
        gluon.data.ArrayDataset(images[share], labels[share]), batch_size, shuffle=True, last_batch="discard"
    )

    writer, critic = generator(), discriminator()
    trainers = []
    for net, store in zip((writer, critic), stores):
        net.initialize(mx.init.Xavier())
        net.hybridize()
        if launched:
            ps.mxnet.broadcast_parameters(net.collect_params())
        options = {"learning_rate": learning_rate, "beta1": 0.5}
        trainers.append(gluon.Trainer(net.collect_params(), "adam", options, kvstore=store))
    writer_trainer, critic_trainer = trainers
    loss_of = gluon.loss.SigmoidBinaryCrossEntropyLoss()
    real, fake = mx.nd.ones((batch_size, 1)), mx.nd.zeros((batch_size, 1))

    def written(wanted: mx.nd.NDArray) -> mx.nd.NDArray:
        return writer(labelled(mx.nd.random.normal(shape=(len(wanted), NOISE)), wanted))

    def share_read() -> float:
        asked = np.arange(ASKED) % 10
        return float((judge.predict(written(mx.nd.array(asked)).asnumpy()) == asked).mean())

    for epoch in track(range(1, epochs + 1), "training", disable=not sys.stdout.isatty()):
        for batch, label in batches:
            forged = written(label)
            with autograd.record():
                critic_loss = loss_of(critic(labelled(batch, label)), real * 0.9)
                critic_loss = critic_loss + loss_of(critic(labelled(forged, label)), fake)
            critic_loss.backward()
            critic_trainer.step(batch_size * workers)

            with autograd.record():
                writer_loss = loss_of(critic(labelled(written(label), label)), real)
            writer_loss.backward()
            writer_trainer.step(batch_size * workers)
        if rank == 0 and epoch % 10 == 0:
            losses = f"critic's loss {critic_loss.mean().asscalar():.3f}  writer's {writer_loss.mean().asscalar():.3f}"
            print(f"epoch {epoch:3d}/{epochs}  {losses}  read as asked {share_read():.3f}", flush=True)

    result = share_read()
    if rank == 0:
        print(f"read as asked: {result:.3f} of {ASKED} images")
    if result < min_share:
        raise click.ClickException(f"only {result:.3f} of the images are read as was asked, not {min_share}")


if __name__ == "__main__":
    train()
