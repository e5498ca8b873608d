"""Codecs between real processes: what arrives, how few bytes travel, who has to agree, and that training converges."""

from __future__ import annotations

from tests.cluster.harness import Cluster

#: ``traffic(step)`` returns the result of ``step()`` and the payload bytes that it sent and received.
PRELUDE = """
import numpy as np, ps
from ps.codecs import codec_of

def traffic(step):
    before = worker.statistics()
    result = step()
    after = worker.statistics()
    return result, *(after[name] - before[name] for name in ("bytes_sent", "bytes_received"))

with ps.Worker() as worker:
    rank = worker.rank
"""


def run(source: str, workers: int = 2, servers: int = 1, **env: str) -> list[str]:
    """Run ``source`` on all workers, with ``worker``, ``rank`` and ``traffic`` at hand; return what each printed."""
    body = "".join(f"    {line}\n" for line in source.strip("\n").splitlines())
    with Cluster(workers=workers, servers=servers, env=env) as cluster:
        outputs = [process.stdout for process in cluster.run(PRELUDE + body, timeout=40)]
        assert cluster.finish() == [0] * (1 + servers)
    return outputs


def test_the_sum_of_what_the_codec_lets_through() -> None:
    source = """
worker.init("a", np.array([7, 7, 7], "float32"), codec={"type": "2bit", "threshold": 0.5})
print(worker.pull("a").wait().tolist())
for gradient in [0.75, 0.25, 0.25], [0.0, 0.25, -1.0]:
    print(worker.push_pull("a", np.array(gradient, "float32")).wait().tolist())
worker.push("a", np.zeros(3, "float32"))
print(worker.pull("a").wait().tolist())
"""
    expected = "[7.0, 7.0, 7.0]\n[1.0, 0.0, 0.0]\n[0.0, 1.0, -1.0]\n[0.0, 0.0, 0.0]\n"
    assert run(source) == [expected] * 2


def test_fewer_bytes_travel() -> None:
    bytes_sent_and_received = {
        "None": (256_000, 256_000),
        "'2bit'": (16_000, 256_000),
        "'1bit'": (8_000, 256_000),
        "'fp16'": (128_000, 256_000),
        "{'type': 'fp16', 'answers': True}": (128_000, 128_000),
        "{'type': 'topk', 'ratio': 0.01}": (5_120, 256_000),
    }
    source = f"""
gradient = np.random.default_rng(rank).normal(size=64_000).astype("float32")
for number, codec in enumerate([{", ".join(bytes_sent_and_received)}]):
    key = f"a{{number}}"
    worker.init(key, np.zeros(64_000, "float32"), codec=codec)
    print(traffic(lambda: worker.push_pull(key, gradient).wait())[1:])
"""
    expected = "".join(f"{travelled}\n" for travelled in bytes_sent_and_received.values())
    assert run(source, servers=2, AUTOBYTE_PARTITION_BYTES="32000") == [expected] * 2


EXPECTED = """
size, codec = 10_007, codec_of({"type": "2bit", "threshold": 0.3})
worker.init("a", np.zeros(size, "float32"), codec=codec)
generators = [np.random.default_rng(other) for other in range(worker.num_workers)]
encoders = [codec.encoder(size, np.dtype("float32")) for _ in generators]

def next_round(version):
    \"\"\"Return this rank's next gradient and the sum of what the codec lets through of all ranks'.\"\"\"
    gradients = [generator.normal(scale=0.5, size=size).astype("float32") for generator in generators]
    for encoder, gradient in zip(encoders, gradients):
        encoder.begin(version, gradient)
    arrived = [codec.decode(encoder.encode(0, size), size, np.dtype("float32")) for encoder in encoders]
    return gradients[rank], sum(arrived)

"""


def test_any_partition_size_gives_the_numbers_of_one_process() -> None:
    source = """
from ps.config import CommConfig
for version, partition_bytes in enumerate((100, 4097, 333, 40_000, 1 << 20), 1):
    worker.configure(CommConfig(partition_bytes=partition_bytes * (1 + rank), fusion_bytes=1000 * rank))
    gradient, expected = next_round(version)
    assert np.allclose(worker.push_pull("a", gradient).wait(), expected, atol=1e-6)
"""
    run(EXPECTED + source, workers=3, servers=2)


def test_what_is_sent_again_is_not_encoded_again() -> None:
    source = """
def as_after_a_broken_connection():
    worker._loop._greet(worker._loop._servers[0])
    worker._loop.traffic._links.links[0]._asked_seq = 1 << 60  # so that something seems to be lost

for version in range(1, 6):
    gradient, expected = next_round(version)
    handle = worker.push_pull("a", gradient)
    worker._loop.post(as_after_a_broken_connection)
    assert np.array_equal(handle.wait(), expected)
assert worker.statistics()["messages_resent"] > 0
"""
    run(EXPECTED + source)


def test_what_fp16_rounds_is_alike_on_all_ranks_and_a_pull_is_exact() -> None:
    source = """
worker.init("a", np.full(5000, 0.1, "float32"), codec={"type": "fp16", "answers": True})
assert (worker.pull("a").wait() == np.float32(0.1)).all()
result = worker.push_pull("a", np.full(5000, 2049, "float32")).wait()
assert (result == 4096).all(), result
result = worker.push_pull("a", np.full(5000, [2049, 1][rank], "float32")).wait()
assert (result == np.float16(2049)).all(), result
assert (worker.pull("a").wait() == 2049).all()
assert worker.push_pull("a", np.full(5000, 1e6, "float32")).wait()[0] == np.inf
"""
    run(source)


def test_an_asynchronous_key_adds_what_the_codec_lets_through() -> None:
    source = """
worker.init("a", np.zeros(3, "float32"), codec={"type": "2bit", "threshold": 0.5}, mode="async")
for _ in range(4):
    worker.push_pull("a", np.array([0.5, 0.25, -0.125], "float32")).wait()
worker.barrier()
print(worker.pull("a").wait().tolist())
"""
    assert run(source) == ["[4.0, 2.0, -1.0]\n"] * 2


def test_ranks_that_disagree_are_told_so_and_other_keys_work() -> None:
    source = """
try:
    worker.init("a", np.zeros(4, "float32"), codec=[{"type": "2bit", "threshold": 0.5}, None][rank])
except ps.TensorError as error:
    print(error)
worker.init("b", np.zeros(4, "float32"), codec="2bit")
assert worker.push_pull("b", np.ones(4, "float32")).wait().tolist() == [1, 1, 1, 1]
"""
    text = (
        "'a' differs between the ranks: (4,) float32 {'type': '2bit', 'threshold': 0.5} on worker 0, (4,) float32"
        " on worker 1; give all ranks the same kind of store, storage type, optimizer and compression\n"
    )
    first, second = run(source)
    assert text in first and text in second


def test_a_codec_that_cannot_be_is_refused_by_name() -> None:
    source = """
for value, codec in (np.zeros(4, "int32"), "2bit"), (np.zeros(4, "float16"), "fp16"), (np.zeros(4), "3bit"):
    try:
        worker.init("a", value, codec=codec)
    except ps.AutoByteError as error:
        print(error)
worker.init("a", np.zeros(4), codec="2bit")
"""
    first, second = run(source)
    assert first == second
    lines = first.splitlines()
    assert lines[:2] == [
        "init('a'): {'type': '2bit', 'threshold': 0.5} encodes no int32; leave the codec out",
        "init('a'): {'type': 'fp16', 'answers': False} encodes no float16; leave the codec out",
    ]
    assert "gradient compression {'type': '3bit'}" in lines[2]


def test_least_squares_converges() -> None:
    codecs_and_rates = [
        ({"type": "2bit", "threshold": 0.5}, 0.02),
        ({"type": "1bit", "threshold": 0, "scaled": True}, 0.1),
        ({"type": "topk", "ratio": 0.05}, 0.1),
        ({"type": "topk", "ratio": 0.05, "momentum": 0.9, "warmup_rounds": 20, "clip_norm": 2.0}, 0.02),
        ("fp16", 0.2),
    ]
    source = f"""
rng = np.random.default_rng(1)
truth = rng.normal(size=60).astype("float32")
inputs = rng.normal(size=(400, 60)).astype("float32")
targets = inputs @ truth
mine = slice(rank, None, 2)
learners = []
for number, (codec, rate) in enumerate({codecs_and_rates}):
    learners.append((f"w{{number}}", np.zeros(60, "float32"), rate))
    worker.init(learners[-1][0], learners[-1][1], codec=codec)
for step in range(400):
    sums = {{}}
    for key, weights, rate in learners:
        gradient = inputs[mine].T @ (inputs[mine] @ weights - targets[mine]) / 400
        sums[key] = worker.push_pull(key, gradient.astype("float32"))
    for key, weights, rate in learners:
        weights -= rate * sums[key].wait()
for key, weights, rate in learners:
    print(float(np.abs(weights - truth).max()) < 0.05, weights.tobytes().hex())
"""
    first, second = run(source)
    assert first == second
    assert [line.split()[0] for line in first.splitlines()] == ["True"] * len(codecs_and_rates)
