"""Two networks trained by two workers, and by one process that adds the same two gradients.

Run by the processes that :mod:`tests.mxnet.test_bit_equal` starts.
"""

from __future__ import annotations

import hashlib

import ps.mxnet  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

STEPS = 20
BATCH = 2


def lenet():
    net = nn.HybridSequential(prefix="lenet_")
    with net.name_scope():
        net.add(
            nn.Conv2D(20, 5, activation="tanh", in_channels=1),
            nn.MaxPool2D(2, 2),
            nn.Conv2D(50, 5, activation="tanh", in_channels=20),
            nn.MaxPool2D(2, 2),
            nn.Flatten(),
            nn.Dense(500, activation="tanh", in_units=800),
            nn.Dense(10, in_units=500),
        )
    return net, (1, 28, 28)


def resnet18_v1():
    return mx.gluon.model_zoo.vision.get_resnet(1, 18, thumbnail=True, classes=10), (3, 12, 12)


MODELS = {"lenet": lenet, "resnet18_v1": resnet18_v1}


class Training:
    """A network, its trainer, and the batches of every worker and step."""

    def __init__(self, model, seed, kvstore):
        self.net, self._shape = MODELS[model]()
        mx.random.seed(seed)
        np.random.seed(seed)
        self.net.initialize(mx.init.Xavier())
        self._loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        self.net(mx.nd.zeros((1, *self._shape))).wait_to_read()  # the shapes of all parameters are known now
        options = {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4}
        update_on_kvstore = False if kvstore else None
        self.trainer = mx.gluon.Trainer(
            self.net.collect_params(), "sgd", options, kvstore=kvstore, update_on_kvstore=update_on_kvstore
        )
        self.weights = [param for param in self.net.collect_params().values() if param.grad_req != "null"]

    def differentiate(self, rank, step):
        """Compute the gradients of one worker's batch."""
        random = np.random.RandomState(1000 * rank + step)
        data = mx.nd.array(random.rand(BATCH, *self._shape))
        label = mx.nd.array(random.randint(0, 10, BATCH))
        with mx.autograd.record():
            loss = self._loss(self.net(data), label)
        loss.backward()

    def validate(self):
        """An inference between two steps; oneDNN lays out the weights anew. Waits for nothing."""
        self.net(mx.nd.ones((BATCH, *self._shape)))

    def digest(self):
        """Return a hash of every bit of the weights."""
        digest = hashlib.sha256()
        for weight in self.weights:
            digest.update(weight.data().asnumpy().tobytes())
        return digest.hexdigest()


def alone(model):
    """Train with both workers' gradients in one process; return the digest of the weights."""
    training = Training(model, 0, None)
    for step in range(STEPS):
        training.differentiate(0, step)
        first = [weight.grad().copy() for weight in training.weights]
        training.differentiate(1, step)
        for weight, gradient in zip(training.weights, first):
            weight.grad()[:] += gradient
        training.trainer.update(2 * BATCH)
        training.validate()
    return training.digest()


def together(model, store, change=None):
    """Train as one of two workers, beginning with rank 0's values; ``change`` is called in the middle."""
    training = Training(model, store.rank, "dist_sync_autobyte")
    ps.mxnet.broadcast_parameters(training.net)
    for step in range(STEPS):
        if step == STEPS // 2 and change is not None:
            change()
        training.differentiate(store.rank, step)
        training.trainer.step(2 * BATCH)
        training.validate()
    return training.digest()
