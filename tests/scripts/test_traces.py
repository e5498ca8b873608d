"""Tuners on links that change: traces, what is drawn from the steps, and one small job end to end."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from pathlib import Path
from typing import List

import pytest

import bench_traces
from bench.emulated import Device, Layer, layers
from bench.outcome import Outcome
from bench.traces import Change, Phase, Progress, Trace, gain_in_steps, gain_in_time, hindsight, oracle, parse
from bench_traces import rival_variables
from emulation import why_not
from tuner.profiles import ModelProfile, TensorProfile

PHASES = [Phase(0.0, 2.0, "start"), Phase(2.0, 6.0, "all at 100")]


def test_a_named_trace_is_scaled_to_duration_rate_and_hosts() -> None:
    assert parse("straggler", 20.0, 400.0, 2, 2) == Trace(
        "straggler", (Change(6.0, 1, 160.0), Change(14.0, 1, 400.0)), 20.0
    )


def test_a_spelt_trace_is_sorted_and_changes_of_one_moment_begin_one_phase() -> None:
    trace = parse("mine=9:all:50+5:0:100+5:3:200", 12.0, 400.0, 2, 2)
    assert trace.phases == [
        Phase(0.0, 5.0, "start"), Phase(5.0, 9.0, "host 0 at 100, host 3 at 200"), Phase(9.0, 12.0, "all at 50"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fall", "trace 'fall': expected one of drop, rise, straggler, cross, steady"),
        ("mine=5:4:100", "change '5:4:100': expected SECONDS:HOST:MBIT, HOST 0 to 3 or 'all'"),
        ("mine=30:0:100", "trace 'mine=30:0:100': 30 s is not within its 12.0 s"),
    ],
)
def test_a_wrong_trace_is_refused_with_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse(text, 12.0, 400.0, 2, 2)
    assert str(refused.value).startswith(said)


def test_rivals_are_made_by_variables() -> None:
    assert rival_variables("rule") == {"AUTOBYTE_TUNER": "rule"}
    assert rival_variables("bayesian-kept") == {"AUTOBYTE_TUNER": "bayesian"}
    assert rival_variables("static:1M/8M") == {
        "AUTOBYTE_TUNER": "static", "AUTOBYTE_PARTITION_BYTES": "1048576", "AUTOBYTE_CREDIT_BYTES": "8388608",
    }  # fmt: skip
    with pytest.raises(ValueError, match="rival 'static:4': expected static:whole, or P/C"):
        rival_variables("static:4")


def test_a_phase_counts_parts_of_steps_and_has_the_median_of_whole_ones() -> None:
    progress = Progress([0.8, 1.6, 2.4, 3.4, 4.4, 5.4, 6.4], PHASES)
    assert progress.steps == pytest.approx([2.5, 4.1])
    assert progress.step_seconds(0) == pytest.approx(0.8)
    assert progress.step_seconds(1, settled=True) == pytest.approx(1.0)
    assert progress.seconds_for(1, 0.5) == pytest.approx(0.4)
    assert progress.seconds_for(1, 4.1) == pytest.approx(4.0)


def test_gains_are_of_equal_time_and_of_the_steps_that_both_made_in_a_phase() -> None:
    slow = Progress([1.0 * step for step in range(1, 8)], PHASES)
    fast = Progress([0.5 * step for step in range(1, 14)], PHASES)
    assert gain_in_time([fast], [slow]) == pytest.approx(1.0)
    assert gain_in_steps([fast], [slow]) == pytest.approx(1.0)
    assert gain_in_steps([slow], [fast]) == pytest.approx(-0.5)


def test_the_oracle_changes_with_the_phase_and_hindsight_does_not() -> None:
    early = Progress([0.5, 1.0, 1.5, 2.0, 4.0, 6.0], PHASES)  # 4 steps, then 2
    late = Progress([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], PHASES)  # 2 steps, then 4
    later = Progress([2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0], PHASES)  # 1 step, then 8
    statics = {"early": [early], "late": [late], "later": [later]}
    assert hindsight(statics) == "later"
    names, composed = oracle(statics)
    assert names == ["early", "later"]
    assert composed[0].steps == pytest.approx([4.0, 8.0])


def test_gains_name_all_others_and_what_only_hindsight_knows() -> None:
    ends = {"autobyte": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "static:1M/8M": [2.0, 4.0, 6.0]}
    trace = Trace("mine", (Change(2.0, None, 100.0),), 6.0)
    outcome = Outcome(trace, {name: [{"ends": each}] for name, each in ends.items()})
    assert outcome.gains(in_time=True) == pytest.approx(
        {"static:1M/8M": 1.0, "hindsight static": 1.0, "phase oracle": 1.0}
    )


def test_tensors_belong_to_the_layer_whose_time_follows_and_tiny_layers_to_the_next_one() -> None:
    times = [(0.0, 0.0), (0.1, 0.2), (0.0, 0.001), (0.3, 0.4), (0.0, 0.0)]
    model = ModelProfile("three", tuple(TensorProfile(f"tensor{n}", 4, *each) for n, each in enumerate(times)))
    assert layers(model) == [Layer(0, 2, 0.1, 0.2), Layer(2, 4, 0.3, 0.401), Layer(4, 5, 0.0, 0.0)]


def test_the_device_takes_the_sum_of_the_times_whatever_the_delays_between() -> None:
    device, ended = Device(), threading.Event()
    left: List[int] = [100]

    def end() -> None:
        left[0] -= 1
        if left[0]:
            device.begin(0.001, end)
        else:
            ended.set()

    started = time.monotonic()
    device.begin(0.001, end)
    assert ended.wait(5)
    assert 0.099 <= time.monotonic() - started < 0.3


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(60)
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="needs mxnet")
def test_a_small_job_trains_while_its_links_change(tmp_path: Path) -> None:
    record_file = tmp_path / "record.json"
    code = bench_traces.main(
        ["--profile", "alexnet", "--scale", "0.01", "--rate", "400", "--steps", "30", "--traces", "mine=0.5:all:100",
         "--rivals", "static:512K/4M", "--json", str(record_file)]
    )  # fmt: skip
    assert code == 0
    record = json.loads(record_file.read_text())
    (job,) = record["jobs"]
    assert job["ends"] == sorted(job["ends"])
    assert job["ends"][-1] >= job["seconds"] > 1.0
    assert job["events"][0]["config"]["credit_bytes"] == 4194304
