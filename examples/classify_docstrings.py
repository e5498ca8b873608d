"""Learns which package of Python's standard library a docstring comes from: a text model with a sparse embedding.

    autobyte-launch -n 2 -s 2 python examples/classify_docstrings.py   # two workers, two servers
    python examples/classify_docstrings.py                             # the same training in one process

The text is in every Python. A docstring is a bag of words and pairs of words, each hashed to a row of a large table;
the text's vector is the mean of its rows. A step touches few rows: with ``sparse_grad=True`` only their gradients
travel to the servers, which update them by AdaGrad.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Iterator

import ps.mxnet  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import click
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from rich.progress import track

PACKAGES = ["asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml"]
ROWS = 1 << 15
WORDS = 64  # of a docstring are looked at
HELD_OUT = 300
PADDING = 0  # a row that stands for no word


def docstrings(package: str) -> Iterator[str]:
    """Return the docstrings of a package of the standard library, without the package's name."""
    for path in sorted((Path(sysconfig.get_path("stdlib")) / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node) or ""
                if len(text) >= 40:
                    yield text.lower().replace(package, "")


def rows_of(text: str) -> np.ndarray:
    """Return the rows of a text's words and pairs of words, (2 * WORDS,) float32: exact, since ROWS is below 2^24."""
    words = re.findall(r"[a-z_]+", text)[:WORDS]
    terms = words + [f"{first} {second}" for first, second in zip(words, words[1:])]
    rows = np.full(2 * WORDS, PADDING, np.float32)
    rows[: len(terms)] = [1 + zlib.crc32(term.encode()) % (ROWS - 1) for term in terms]
    return rows


def documents() -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the packages of all docstrings, in one random order for all ranks."""
    texts = {text: label for label, package in enumerate(PACKAGES) for text in docstrings(package)}  # each text once
    order = np.random.RandomState(0).permutation(len(texts))
    return np.stack([rows_of(text) for text in texts])[order], np.array(list(texts.values()), np.float32)[order]


class BagOfWords(gluon.nn.HybridBlock):
    def __init__(self, width: int) -> None:
        super().__init__()
        with self.name_scope():
            self.table = gluon.nn.Embedding(ROWS, width, sparse_grad=True, weight_initializer=mx.init.Normal(0.1))
            self.classes = gluon.nn.Dense(len(PACKAGES), in_units=width)

    def hybrid_forward(self, F, rows):  # noqa: N803 (MXNet passes mx.nd or mx.sym by this name)
        is_word = F.expand_dims(rows != PADDING, axis=2)
        vectors = F.broadcast_mul(self.table(rows), is_word)
        return self.classes(F.broadcast_div(vectors.sum(axis=1), F.maximum(is_word.sum(axis=1), 1)))


@click.command()
@click.option("--epochs", default=5, show_default=True)
@click.option("--batch-size", default=32, show_default=True, help="Per worker.")
@click.option("--learning-rate", default=0.3, show_default=True)
@click.option("--min-accuracy", default=0.0, show_default=True, help="Fail if the held-out accuracy stays below.")
def train(epochs: int, batch_size: int, learning_rate: float, min_accuracy: float) -> None:
    """Train a classifier of docstrings and print its accuracy on held-out ones."""
    launched = "DMLC_ROLE" in os.environ
    store = mx.kv.create("dist_sync_autobyte" if launched else "device")
    workers, first = store.num_workers, store.rank == 0

    rows, labels = documents()
    test_rows, test_labels = mx.nd.array(rows[:HELD_OUT]), labels[:HELD_OUT]
    share = slice(HELD_OUT + store.rank, len(labels) - (len(labels) - HELD_OUT) % workers, workers)
    np.random.seed(store.rank)  # each worker shuffles its share in its own way
    batches = gluon.data.DataLoader(
        gluon.data.ArrayDataset(rows[share], labels[share]), batch_size, shuffle=True, last_batch="discard"
    )

    net = BagOfWords(width=32)
    net.initialize()
    if launched:
        ps.mxnet.broadcast_parameters(net.collect_params())
    trainer = gluon.Trainer(net.collect_params(), "adagrad", {"learning_rate": learning_rate}, kvstore=store)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    accuracy = 0.0
    for epoch in track(range(1, epochs + 1), "training", disable=not sys.stdout.isatty()):
        for batch, expected in batches:
            with autograd.record():
                loss = loss_of(net(batch), expected)
            loss.backward()
            trainer.step(batch_size * workers)
        accuracy = float((net(test_rows).asnumpy().argmax(axis=1) == test_labels).mean())
        if first:
            print(f"epoch {epoch:2d}/{epochs}  accuracy {accuracy:.4f}", flush=True)

    if first:
        print(f"accuracy: {accuracy:.4f} on {HELD_OUT} held-out docstrings of {len(PACKAGES)} packages")
    if launched and first:
        table_bytes = ROWS * 32 * 4
        sent = store.worker.statistics()["bytes_sent"] / (len(batches) * epochs)
        print(f"bytes sent by this worker in a step: {sent:,.0f}; the table has {table_bytes:,}")
    if accuracy < min_accuracy:
        raise click.ClickException(f"accuracy {accuracy:.4f} is below {min_accuracy}")


if __name__ == "__main__":
    train()
