"""Parameters trained by two workers with any optimizer, and by one process that adds the same two gradients.

Run by the processes that :mod:`tests.mxnet.test_server_optimizer` starts.
"""

from __future__ import annotations

import hashlib

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx
import numpy as np

STEPS = 20
SHAPES = [(17, 59), (3,), (4, 5, 60), (1000,)]

OPTIMIZERS = {
    "sgd": ("sgd", {"momentum": 0.9, "wd": 1e-3}),
    "nag": ("nag", {"momentum": 0.9}),
    "adam": ("adam", {"wd": 1e-3}),
    "rmsprop": ("rmsprop", {"centered": True}),
    "adagrad": ("adagrad", {"wd": 1e-3}),
    "signum": ("signum", {"momentum": 0.9}),
    "ftrl": ("ftrl", {}),
    "nadam": ("nadam", {}),
    "lars": ("lars", {"momentum": 0.9, "wd": 1e-3}),
    "lamb": ("lamb", {}),
    "lbsgd": ("lbsgd", {"momentum": 0.9, "batch_scale": 2}),
    "schedule": ("adam", {}),
    "half": ("sgd", {"momentum": 0.9, "multi_precision": True}),
}


def gradient(rank, step, number, dtype):
    random = np.random.RandomState(10000 * rank + 100 * step + number)
    return mx.nd.array(random.randn(*SHAPES[number]) * 0.1, dtype=dtype)


class Training:
    def __init__(self, case, kvstore=None, update_on_kvstore=None):
        name, options = OPTIMIZERS[case]
        self.dtype = "float16" if case == "half" else "float32"
        self.params = []
        for number, shape in enumerate(SHAPES):
            param = mx.gluon.Parameter(f"p{number}", shape=shape, dtype=self.dtype, lr_mult=1 + number, wd_mult=number)
            param.initialize(mx.init.Constant(0))
            param.set_data(mx.nd.array(np.random.RandomState(number).randn(*shape), dtype=self.dtype))
            self.params.append(param)
        options = {"learning_rate": 0.02, **options}
        if case == "schedule":
            options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(4, 0.5, base_lr=0.02)
        self.trainer = mx.gluon.Trainer(self.params, name, options, kvstore, update_on_kvstore=update_on_kvstore)

    def step(self, step, ranks, updater=None):
        """Take a step with the sum of the gradients of ``ranks``: Trainer's, or with ``updater`` key by key."""
        if step == 7 and self.trainer.optimizer.lr_scheduler is None:
            self.trainer.set_learning_rate(0.005)
        if step == 11:
            self.trainer.optimizer.wd = 0.01
        for number, param in enumerate(self.params):
            first, *rest = (gradient(rank, step, number, self.dtype) for rank in ranks)
            for other in rest:
                first = (first.astype("float32") + other.astype("float32")).astype(self.dtype)
            if updater is not None:
                updater(number, first, param.data())
            param.grad()[:] = first
            param.data()._fresh_grad = True
        if updater is None:
            self.trainer.step(4)

    def digest(self):
        """Return a hash of every bit of the weights."""
        digest = hashlib.sha256()
        for param in self.params:
            digest.update(param.data().asnumpy().tobytes())
        return digest.hexdigest()[:16]


def update(case):
    """Have MXNet's updater make the steps of two workers, one key after the other."""
    training = Training(case)
    optimizer = training.trainer.optimizer
    optimizer.rescale_grad = 0.25
    updater = mx.optimizer.get_updater(optimizer)
    for step in range(STEPS):
        training.step(step, [0, 1], updater)
    return training.digest()


def train(case, ranks, kvstore=None, update_on_kvstore=None):
    training = Training(case, kvstore, update_on_kvstore)
    for step in range(STEPS):
        training.step(step, ranks)
    return training.digest()
