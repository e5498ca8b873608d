"""The fluid of one step, against what a pencil says."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.pipeline import PIECES, Pieces, flow, pieces_of


def of(sizes: list[float], forward: list[float], backward: list[float]) -> Pieces:
    return Pieces(np.array(sizes), np.array(forward), np.array(backward))


def test_one_piece_waits_for_the_wire() -> None:
    # Backward 2 s, 100 bytes at 10 bytes/s take 10 s, delay 1 s, forward 1 s.
    result = flow(of([100], [1], [2]), np.array([10.0]), np.array([1.0]))
    assert result.by_priority[0] == pytest.approx(14)
    assert result.in_order[0] == pytest.approx(14)
    assert result.left[0] == pytest.approx(1)


def test_priority_lets_the_forward_pass_begin_earlier() -> None:
    # Gradient of piece 1 at 1 s, of piece 0 at 2 s; each takes 4 s on the wire, each layer 3 s forward.
    result = flow(of([40, 40], [3, 3], [1, 1]), np.array([10.0]), np.array([0.0]))
    # By priority: piece 1 moves 1 s, piece 0 is there at 6, piece 1 at 9: forward from 6 to 9 to 12.
    assert result.by_priority[0] == pytest.approx(12)
    # In order: piece 1 is there at 5, piece 0 at 9: forward from 9 to 15.
    assert result.in_order[0] == pytest.approx(15)
    assert result.left[0] == pytest.approx(70 / 80)


def test_a_fast_wire_leaves_only_the_computation_and_the_last_gradient() -> None:
    result = flow(of([40, 40], [3, 3], [1, 1]), np.array([1e9]), np.array([0.0]))
    assert result.by_priority[0] == pytest.approx(8)
    assert result.left[0] == pytest.approx(0.5)  # the first layer's gradient is ready only as the pass ends


def test_all_rates_at_once() -> None:
    pieces = of([40, 20, 60], [1, 2, 3], [2, 1, 1])
    rates, delays = np.array([5.0, 50.0, 500.0]), np.array([0.1, 0.2, 0.3])
    together = flow(pieces, rates, delays)
    alone = [flow(pieces, rates[i : i + 1], delays[i : i + 1]) for i in range(3)]
    assert together.by_priority.tolist() == pytest.approx([result.by_priority[0] for result in alone])
    assert together.in_order.tolist() == pytest.approx([result.in_order[0] for result in alone])


def test_many_tensors_are_joined_and_nothing_is_lost() -> None:
    pieces = pieces_of(np.arange(1.0, 101.0), 0.3, 0.6, np.array([]))
    assert len(pieces.size_bytes) == PIECES
    assert pieces.size_bytes.sum() == pytest.approx(5050)
    assert pieces.forward_seconds.sum() == pytest.approx(0.3)
    assert pieces.backward_seconds.sum() == pytest.approx(0.6)
