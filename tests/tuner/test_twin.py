"""The job as its nodes describe it, made ready for a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from ps.config import CommConfig
from tuner.conditions import Conditions, Host
from tuner.observed import situation_of
from tuner.profiles import ModelProfile, TensorProfile
from tuner.simulator import simulate
from tuner.situation import HostView, Situation
from tuner.twin import Guess, twin_of

pytestmark = pytest.mark.timeout(10)

PROFILE = ModelProfile("two", (TensorProfile("a", 400_000, 0.001, 0.002), TensorProfile("b", 1_600_000, 0.001, 0.004)))
FAST = Host(send_bytes_per_second=1.25e9, receive_bytes_per_second=1e9, overhead_seconds=1e-4, byte_seconds=1e-10)
SLOW = replace(FAST, send_bytes_per_second=2.5e8, speed=0.5)
CONDITIONS = Conditions(workers=(FAST, FAST, SLOW), servers=(FAST,), latency_seconds=5e-5, sum_bytes_per_second=2e9)


def seen(spread: float = 0.0) -> Situation:
    simulated = simulate(PROFILE, CONDITIONS, CommConfig(), steps=2)
    return situation_of(PROFILE, CONDITIONS, CommConfig(), simulated, np.random.default_rng(1), spread)


def test_where_nodes_know_the_truth_the_twin_is_the_job() -> None:
    twin = twin_of(seen())
    assert twin is not None
    assert twin.conditions.latency_seconds == 5e-5
    assert twin.conditions.sum_bytes_per_second == pytest.approx(2e9)
    assert [host.send_bytes_per_second for host in twin.conditions.workers] == [1.25e9, 1.25e9, 2.5e8]
    assert [host.receive_bytes_per_second for host in twin.conditions.workers] == [1e9, 1e9, 1e9]
    assert [host.speed for host in twin.conditions.workers] == pytest.approx([1, 1, 0.5])
    assert replace(twin.conditions.servers[0], speed=1.0) == FAST
    assert [tensor.size_bytes for tensor in twin.profile.tensors] == [400_000, 1_600_000]
    backward = [tensor.backward_seconds for tensor in twin.profile.tensors]
    assert backward[1] / backward[0] == pytest.approx(2, rel=0.01)


def test_hosts_that_only_the_errors_of_estimates_tell_apart_are_one_kind() -> None:
    twin = twin_of(seen(spread=0.2))
    assert twin is not None
    assert twin.conditions.workers[0] == twin.conditions.workers[1] != twin.conditions.workers[2]


def test_the_factor_makes_messages_dearer_and_nothing_else() -> None:
    twin, dear = twin_of(seen()), twin_of(seen(), Guess(overhead_factor=2.0))
    assert twin is not None and dear is not None
    assert dear.profile == twin.profile
    host, dear_host = twin.conditions.workers[0], dear.conditions.workers[0]
    assert dear_host == replace(host, overhead_seconds=2e-4, byte_seconds=2e-10)


def test_computation_that_no_pass_tells_of_is_guessed() -> None:
    blind = replace(seen(), forward_seconds=None, backward_seconds=None, tensor_seconds=())
    idle, overlapped = twin_of(blind), twin_of(blind, Guess(computation_seconds=0.03))
    before = twin_of(blind, Guess(computation_seconds=0.03, before=True))
    assert idle is not None and overlapped is not None and before is not None
    assert idle.profile.forward_seconds == idle.profile.backward_seconds == 0.0
    assert overlapped.profile.forward_seconds == pytest.approx(0.01)
    assert overlapped.profile.backward_seconds == pytest.approx(0.02)
    assert [tensor.backward_seconds for tensor in before.profile.tensors] == pytest.approx([0.0, 0.03])
    assert before.profile.forward_seconds == 0.0


def test_sizes_that_no_node_tells_make_up_the_model() -> None:
    unknown = replace(seen(), tensor_bytes=(), tensor_seconds=())
    alike, grown = twin_of(unknown, Guess(growth=0.0)), twin_of(unknown, Guess(growth=4.0))
    assert alike is not None and grown is not None
    assert [tensor.size_bytes for tensor in alike.profile.tensors] == [1_000_000, 1_000_000]
    assert grown.profile.tensors[1].size_bytes > 5 * grown.profile.tensors[0].size_bytes
    assert grown.profile.model_bytes == pytest.approx(2_000_000, abs=8)


def test_computation_of_layers_that_no_node_tells_grows_with_their_size() -> None:
    unknown = replace(seen(), tensor_seconds=())
    for power, ratio in ((0.0, 1.0), (0.5, 2.0), (1.0, 4.0)):
        twin = twin_of(unknown, Guess(layer_power=power))
        assert twin is not None
        first, second = twin.profile.tensors
        assert second.backward_seconds == pytest.approx(ratio * first.backward_seconds)


@pytest.mark.parametrize(
    "unknown",
    [
        {"tensor_bytes": (), "model_bytes": 0},
        {"overhead_seconds": None},
        {"bandwidth_bytes_per_second": None},
    ],
)
def test_without_model_or_network_there_is_none(unknown: dict[str, object]) -> None:
    assert twin_of(replace(seen(), **unknown)) is None


def test_a_host_that_knows_nothing_is_like_the_others() -> None:
    situation = seen()
    twin = twin_of(replace(situation, workers=(situation.workers[0], HostView(), situation.workers[2])))
    assert twin is not None
    assert twin.conditions.workers[1].send_bytes_per_second == 1.25e9
