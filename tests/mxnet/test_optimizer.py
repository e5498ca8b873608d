"""A shard updated range by range on the server has the bits of MXNet's updater in one process."""

from __future__ import annotations

from typing import Any

import msgspec
import mxnet as mx
import numpy as np
import pytest

from ps.messages import Shard, Storage, Tensor, TensorSpec
from ps.mxnet import description as d
from ps.mxnet.optimizer import Chosen, ShardUpdater

SIZE = 1003
CUTS = [(0, 1, 2, 400, 1003), (0, 1003), (0, 500, 501, 1003), (0, 37, 1003)]

OPTIMIZERS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "wd": 0.01, "clip_gradient": 0.5}),
    ("ccsgd", {"momentum": 0.9}),
    ("nag", {"momentum": 0.9, "wd": 0.001}),
    ("adam", {"wd": 0.001}),
    ("rmsprop", {}),
    ("rmsprop", {"centered": True, "clip_weights": 2.0}),
    ("adagrad", {"wd": 0.01}),
    ("adadelta", {"wd": 0.01}),
    ("adamax", {}),
    ("nadam", {}),
    ("signum", {"momentum": 0.9, "wd_lh": 0.01}),
    ("signum", {"momentum": 0.0}),
    ("ftrl", {"lamda1": 0.1}),
    ("ftml", {}),
    ("dcasgd", {}),
    ("lbsgd", {"momentum": 0.9, "warmup_strategy": "lars"}),
    ("lbsgd", {"momentum": 0.9, "batch_scale": 3}),
    ("lars", {"momentum": 0.9}),
    ("lamb", {}),
    ("test", {}),
]


def _updated_by_mxnet(name: str, arguments: dict[str, Any], dtype: str, steps: int) -> list[Any]:
    optimizer = mx.optimizer.create(name, **arguments)
    updater = mx.optimizer.get_updater(optimizer)
    random = np.random.RandomState(1)
    weight = mx.nd.array(random.randn(17, 59), dtype=dtype)
    results = []
    for step in range(steps):
        if step == 7:
            optimizer.lr = 0.003
        updater(3, mx.nd.array(random.randn(17, 59) * 0.1, dtype=dtype), weight)
        results.append(weight.asnumpy().copy().reshape(-1))
    return results


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("name", "arguments"), OPTIMIZERS)
def test_updates_of_ranges_have_the_bits_of_updates_of_the_whole(
    name: str, arguments: dict[str, Any], dtype: str
) -> None:
    arguments = {**arguments, "learning_rate": 0.01, "multi_precision": dtype == "float16"}
    expected = _updated_by_mxnet(name, arguments, dtype, 20)
    optimizer = mx.optimizer.create(name, **arguments)
    whole = d.needs_whole_tensors(optimizer)
    tensor = Tensor(0, TensorSpec("t", (17, 59), dtype, whole=whole), [Shard(0, 0, SIZE)])
    updater = ShardUpdater(tensor, tensor.shards[0], Chosen(d.describe(optimizer)))
    random = np.random.RandomState(1)
    weight = random.randn(17, 59).astype(dtype).reshape(-1)
    m = 1.0
    updater.settings(msgspec.msgpack.encode(d.KeySettings(key=3)))
    for step in range(20):
        if step == 7:
            updater.settings(msgspec.msgpack.encode(d.KeySettings(parameters={"lr": 0.003})))
        if name == "nadam":
            updater.settings(msgspec.msgpack.encode(d.KeySettings(evolving={"m_schedule": m})))
            m = m * (0.9 * (1.0 - 0.5 * (pow(0.96, (step + 1) * 0.004))))
        gradient = (random.randn(17, 59) * 0.1).astype(dtype).reshape(-1)
        cuts = (0, SIZE) if whole else CUTS[step % len(CUTS)]
        for start, stop in zip(cuts, cuts[1:]):
            updater.update(step + 5, start, stop, gradient[start:stop], weight[start:stop])
        assert weight.tobytes() == expected[step].tobytes(), step


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sgd", {}),
        ("sgd", {"momentum": 0.9, "wd": 0.01}),
        ("sgd", {"momentum": 0.9, "lazy_update": False}),
        ("adam", {"wd": 0.01}),
        ("adam", {"lazy_update": False}),
        ("adagrad", {}),
        ("ftrl", {}),
        ("groupadagrad", {}),
        ("rmsprop", {}),
        ("nag", {"wd": 0.01}),
    ],
)
@pytest.mark.parametrize("stype", list(Storage))
def test_updates_of_rows_have_the_bits_of_mxnets_row_sparse_updates(
    stype: Storage, name: str, arguments: dict[str, Any]
) -> None:
    optimizer = mx.optimizer.create(name, learning_rate=0.1, **arguments)
    spec = TensorSpec("t", (9, 4), "float32", stype=stype, whole=d.needs_whole_tensors(optimizer))
    tensor = Tensor(0, spec, [Shard(0, 0, 36)])
    updater = ShardUpdater(tensor, tensor.shards[0], Chosen(d.describe(optimizer)))
    reference = mx.optimizer.get_updater(optimizer)
    random = np.random.RandomState(2)
    weight = random.randn(9, 4).astype("float32")
    expected = mx.nd.array(weight).tostype(stype.value)
    for step, ids in enumerate([[0, 3, 8], [3], [], [0, 1, 2, 3, 4, 5, 6, 7, 8], [2, 3]]):
        gradient = random.randn(len(ids), 4).astype("float32")
        sparse = (
            mx.nd.sparse.row_sparse_array((gradient, ids), shape=(9, 4))
            if ids
            else mx.nd.sparse.zeros("row_sparse", (9, 4))
        )
        reference(0, sparse, expected)
        updater.update_rows(step + 1, np.array(ids, np.int64), gradient, weight)
        assert weight.tobytes() == expected.tostype("default").asnumpy().tobytes(), step
