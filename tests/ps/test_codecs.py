"""What each codec sends, what it keeps for later, and what it refuses."""

from __future__ import annotations

from typing import Any, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ps.codecs import Codec, CodecError, Encoder, Half, OneBit, TopK, TwoBit, codec_of, describe
from ps.codecs.top_k import largest
from ps.errors import SettingsError

FLOAT32 = np.dtype("float32")
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]
ALL = [TwoBit(), OneBit(), OneBit(threshold=0.0, scaled=True), Half(), TopK(ratio=0.3), TopK(ratio=0.3, momentum=0.9)]

Array = NDArray[Any]


def send(codec: Codec, encoder: Encoder, gradient: Array, cuts: Sequence[int] = (), version: int = 1) -> Array:
    """Return what arrives of ``gradient``, cut at the positions ``cuts``."""
    encoder.begin(version, gradient)
    arrived = np.empty_like(gradient)
    edges = [0, *sorted(cuts), gradient.size]
    for start, stop in zip(edges, edges[1:]):
        if start < stop:
            payload = encoder.encode(start, stop - start)
            assert payload.nbytes == encoder.encoded_bytes(stop - start)
            arrived[start:stop] = codec.decode(payload, stop - start, gradient.dtype)
    return arrived


def rounds(codec: Codec, *gradients: Sequence[float], dtype: np.dtype[Any] = FLOAT32) -> list[list[float]]:
    """Return what arrives of each round's gradient."""
    encoder = codec.encoder(len(gradients[0]), dtype)
    return [
        send(codec, encoder, np.array(gradient, dtype), version=version).tolist()
        for version, gradient in enumerate(gradients, 1)
    ]


# --------------------------------------------------------------------------------------- two bits


def test_2bit_sends_the_threshold_once_the_residual_has_reached_it() -> None:
    gradient = [0.5, 0.375, -0.5, -0.375, 1.25]
    assert rounds(TwoBit(threshold=0.5), gradient, [0.0] * 5, gradient) == [
        [0.5, 0, -0.5, 0, 0.5],
        [0, 0, 0, 0, 0.5],
        [0.5, 0.5, -0.5, -0.5, 0.5],
    ]


def test_2bit_takes_a_sixteenth_of_float32() -> None:
    assert TwoBit().encoder(64, FLOAT32).encoded_bytes(64) == 16


def test_2bit_sends_nothing_for_nan_and_the_threshold_for_infinity() -> None:
    infinity = float("inf")
    assert rounds(TwoBit(), [float("nan"), infinity, -infinity]) == [[0, 0.5, -0.5]]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_2bit_of_every_float(dtype: np.dtype[Any]) -> None:
    assert rounds(TwoBit(threshold=0.5), [0.75, 0.25, -2.0], dtype=dtype) == [[0.5, 0, -0.5]]


def reference_2bit(gradients: Sequence[Array], threshold: float) -> list[Array]:
    """MXNet's rule, element by element in float32."""
    limit = np.float32(threshold)
    residual = [np.float32(0)] * gradients[0].size
    sent = []
    for gradient in gradients:
        values = np.zeros_like(gradient)
        for i, element in enumerate(gradient):
            residual[i] = np.float32(residual[i] + element)
            if residual[i] >= limit:
                values[i] = limit
                residual[i] = np.float32(residual[i] - limit)
            elif residual[i] <= -limit:
                values[i] = -limit
                residual[i] = np.float32(residual[i] + limit)
        sent.append(values)
    return sent


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 60), st.sampled_from([0.5, 0.1, 3e-5, 7.0]))
def test_2bit_is_the_reference_bit_for_bit_however_it_is_cut(data: st.DataObject, size: int, threshold: float) -> None:
    multiples = arrays(np.float32, size, elements=st.floats(-4, 4, width=32, allow_subnormal=False))
    gradients = [np.float32(threshold) * data.draw(multiples) for _ in range(4)]
    codec = TwoBit(threshold=threshold)
    encoder = codec.encoder(size, FLOAT32)
    for gradient, expected in zip(gradients, reference_2bit(gradients, threshold)):
        cuts = data.draw(st.lists(st.integers(0, size), max_size=5))
        assert send(codec, encoder, gradient, cuts).tobytes() == expected.tobytes()


# ------------------------------------------------------------------------------------------ one bit


def test_1bit_sends_plus_or_minus_one_and_keeps_the_difference() -> None:
    assert rounds(OneBit(threshold=0.0), [0.25, -0.25, 3.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]) == [
        [1, -1, 1],
        [-1, 1, 1],
        [1, -1, 1],
    ]


def test_1bit_scaled_sends_the_means_of_either_side() -> None:
    assert rounds(OneBit(threshold=0.0, scaled=True), [1.0, 3.0, -1.0, -2.0], [0.0] * 4) == [
        [2, 2, -1.5, -1.5],
        [-0.75, 0.75, 0.75, -0.75],
    ]


@pytest.mark.parametrize("gradient", [[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
def test_1bit_scaled_with_an_empty_side(gradient: list[float]) -> None:
    assert rounds(OneBit(threshold=0.0, scaled=True), gradient) == [gradient]


def test_1bit_takes_a_thirty_second_of_float32() -> None:
    assert OneBit().encoder(64, FLOAT32).encoded_bytes(64) == 8
    assert OneBit(scaled=True).encoder(64, FLOAT32).encoded_bytes(64) == 16


# ------------------------------------------------------------------------------------------ float16


def test_fp16_rounds_to_the_nearest_and_forgets() -> None:
    assert rounds(Half(), [2049.0, 0.1, 1e6], [0.0] * 3) == [[2048, float(np.float16(0.1)), float("inf")], [0, 0, 0]]


@given(arrays(np.float16, st.integers(1, 40), elements=st.floats(width=16, allow_nan=False)), st.data())
@settings(max_examples=40, deadline=None)
def test_fp16_is_exact_for_what_float16_holds(values: Array, data: st.DataObject) -> None:
    gradient = values.astype(np.float32)
    cuts = data.draw(st.lists(st.integers(0, gradient.size), max_size=4))
    assert send(Half(), Half().encoder(gradient.size, FLOAT32), gradient, cuts).tobytes() == gradient.tobytes()


def test_fp16_is_of_no_use_for_float16() -> None:
    assert [Half().accepts(dtype) for dtype in FLOATS] == [False, True, True]
    assert all(TwoBit().accepts(dtype) for dtype in FLOATS)
    assert not any(codec.accepts(np.dtype("int32")) for codec in ALL)


# -------------------------------------------------------------------------------------------- top-k


def test_topk_sends_the_largest_and_then_what_waited() -> None:
    assert rounds(TopK(ratio=0.5), [1.0, -8.0, 2.0, 4.0], [0.0] * 4, [0.0] * 4) == [
        [0, -8, 0, 4],
        [1, 0, 2, 0],
        [0, 0, 0, 0],
    ]


def test_topk_sends_at_least_one_element() -> None:
    assert rounds(TopK(ratio=0.001), [1.0, -2.0]) == [[0, -2]]


def test_topk_takes_eight_bytes_for_each_element_that_it_sends() -> None:
    encoder = TopK(ratio=0.01).encoder(1000, FLOAT32)
    encoder.begin(1, np.zeros(1000, FLOAT32))
    assert encoder.encoded_bytes(1000) == 80
    assert encoder.encoded_bytes(1) == 8


def test_topk_with_momentum_lets_an_element_that_waits_gain_speed() -> None:
    # element 0 is always sent; element 1 waits for three rounds: 1 + (0.5 + 1) + (0.75 + 1) = 4.25
    assert rounds(TopK(ratio=0.5, momentum=0.5), [9.0, 1.0], [9.0, 1.0], [0.0, 1.0], [9.0, 1.0]) == [
        [9, 0],
        [9, 0],
        [0, 4.25],
        [9, 0],
    ]


def test_topk_clips_the_norm_of_the_whole_gradient_before_it_is_accumulated() -> None:
    codec = TopK(ratio=1.0, clip_norm=5.0)
    assert send(codec, codec.encoder(2, FLOAT32), np.array([6, 8], FLOAT32), cuts=[1]).tolist() == [3, 4]
    assert rounds(codec, [3.0, 4.0], [0.0, 0.0]) == [[3, 4], [0, 0]]


def test_topk_warms_up_to_its_ratio() -> None:
    codec = TopK(ratio=0.001, warmup_rounds=8)
    shares = [codec.share(version) for version in range(1, 12)]
    assert 0.1 < shares[0] < 0.25
    assert shares == sorted(shares, reverse=True)
    assert shares[7:] == [0.001] * 4


def test_topk_sends_nan_at_once() -> None:
    [[first, second]] = rounds(TopK(ratio=0.5), [1.0, float("nan")])
    assert first == 0 and np.isnan(second)


@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_largest_has_the_magnitudes_of_a_full_sort(size: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    magnitudes = np.abs(rng.normal(size=size) ** 3).round(1)  # with ties
    number = max(1, int(share * size))
    positions = largest(magnitudes, number)
    assert positions.size == number and (np.diff(positions) > 0).all()
    assert sorted(magnitudes[positions]) == sorted(magnitudes)[size - number :]


def test_largest_where_the_sample_misleads() -> None:
    magnitudes = np.zeros(32 * 64)
    magnitudes[::32] = 1.0 + np.arange(64)
    assert largest(magnitudes, 40).tolist() == [32 * i for i in range(24, 64)]
    magnitudes = np.arange(32 * 64, dtype=float)
    magnitudes[::32] = 1e9
    assert largest(magnitudes, 100)[:3].tolist() == [0, 32, 64]


# ---------------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("codec", ALL, ids=str)
@given(data=st.data(), size=st.integers(1, 100))
@settings(max_examples=25, deadline=None)
def test_what_arrives_and_what_waits_are_together_what_was_pushed(codec: Codec, data: st.DataObject, size: int) -> None:
    """Multiples of 1/64 are added without rounding: nothing may get lost, however the rounds are cut."""
    if isinstance(codec, (Half, TopK)) and getattr(codec, "momentum", 1):
        return  # no residual; or velocities instead of gradients
    if isinstance(codec, OneBit) and codec.scaled:
        return  # means round
    encoder = codec.encoder(size, np.dtype("float64"))
    pushed, arrived = np.zeros(size), np.zeros(size)
    for _ in range(3):
        gradient = data.draw(arrays(np.int16, size, elements=st.integers(-128, 128))) / 64
        pushed += gradient
        arrived += send(codec, encoder, gradient, data.draw(st.lists(st.integers(0, size), max_size=5)))
    assert np.array_equal(pushed - arrived, encoder._residual)  # type: ignore[attr-defined]


@pytest.mark.parametrize("codec", ALL, ids=str)
@given(payload=st.binary(max_size=64), count=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_decoded_or_refused(codec: Codec, payload: bytes, count: int) -> None:
    try:
        values = codec.decode(memoryview(payload), count, FLOAT32)
    except CodecError as error:
        assert str(count) in str(error)
    else:
        assert values.shape == (count,) and values.dtype == FLOAT32


def test_a_topk_that_names_an_element_out_of_range_is_refused() -> None:
    payload = np.array([7], "<u4").tobytes() + np.array([1], "<f4").tobytes()
    assert TopK().decode(memoryview(payload), 8, FLOAT32)[7] == 1
    with pytest.raises(CodecError, match="topk of 7 elements names element 7"):
        TopK().decode(memoryview(payload), 7, FLOAT32)


# ------------------------------------------------------------------------------------- descriptions


def test_a_codec_is_described_as_in_mxnet() -> None:
    assert codec_of({"type": "2bit", "threshold": 0.25}) == TwoBit(threshold=0.25)
    assert codec_of({"type": "2bit", "threshold": "0.25"}) == TwoBit(threshold=0.25)
    assert codec_of({"type": "2bit", "threshold": 1}) == TwoBit(threshold=1.0)
    assert codec_of("2bit") == codec_of(TwoBit()) == TwoBit(threshold=0.5)
    assert codec_of({"type": "fp16", "answers": True}) == Half(answers=True)
    assert describe(TwoBit()) == "{'type': '2bit', 'threshold': 0.5}"
    assert all(codec_of(msgspec.to_builtins(codec)) == codec for codec in ALL)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ("2bits", "'2bits'"),
        ({"type": "2bit", "threshold": 0}, "must be above 0, not 0.0"),
        ({"type": "2bit", "threshold": -0.5}, "must be above 0, not -0.5"),
        ({"type": "2bit", "threshold": float("nan")}, "must be above 0, not nan"),
        ({"type": "2bit", "treshold": 0.5}, "treshold"),
        ({"threshold": 0.5}, "type"),
        ({"type": "1bit", "threshold": float("inf")}, "must be a number, not inf"),
        ({"type": "topk", "ratio": 0}, "above 0 and at most 1, not 0.0"),
        ({"type": "topk", "ratio": 1.5}, "above 0 and at most 1, not 1.5"),
        ({"type": "topk", "momentum": 1}, "below 1, not 1.0"),
        ({"type": "topk", "clip_norm": -1}, "0 or above, not -1.0"),
        ({"type": "topk", "warmup_rounds": -1}, "0 or above, not -1"),
        ({"type": "topk", "warmup_rounds": "many"}, "warmup_rounds"),
    ],
)
def test_a_wrong_description_is_refused_with_its_value(description: Any, text: str) -> None:
    with pytest.raises(SettingsError, match="known are .*'2bit'") as caught:
        codec_of(description)
    assert text in str(caught.value)
