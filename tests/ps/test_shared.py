"""Shared memory: what a peer can read, what it is refused, and what happens where there is none."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Iterator

import numpy as np
import pytest

from ps import shared
from ps.messages import Place, Probe, Span, SpanKind
from ps.shared import MAX_SEGMENTS, SEGMENT_BYTES, Arena, Neighbour, SharedMemoryError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd")

FLOAT32 = np.dtype(np.float32)


def befriended(arena: Arena) -> Neighbour:
    """Return the owner of ``arena``, this process, as a neighbour that has proved its memory."""
    neighbour = Neighbour("worker 1")
    assert neighbour.greeted(arena.probe, True)
    return neighbour


def at(place: Place, kind: SpanKind = SpanKind.PUSH, encoded_bytes: int = 0) -> Span:
    return Span(kind, 0, 1, 0, 8, 0, place, encoded_bytes)


def place_of(arena: Arena, array: np.ndarray) -> Place:
    place = arena.place(array)
    assert place is not None
    return place


@pytest.fixture
def descriptors() -> Iterator[list[int]]:
    """Descriptors to be closed after the test."""
    opened: list[int] = []
    yield opened
    for fd in opened:
        os.close(fd)


def test_a_neighbour_reads_what_was_written_and_cannot_write() -> None:
    arena = Arena()
    neighbour = befriended(arena)
    array = arena.empty(1000, FLOAT32)
    array[:] = np.arange(1000)
    memory = neighbour.payload(at(place_of(arena, array)))
    assert (memory[:4000].view(np.float32) == np.arange(1000)).all()
    array[7] = -1
    assert memory[:4000].view(np.float32)[7] == -1
    assert not memory.flags.writeable


def test_a_part_of_an_array_has_its_own_place() -> None:
    arena = Arena()
    array = arena.empty(1000, FLOAT32)
    whole, part = place_of(arena, array), place_of(arena, array[10:20])
    assert (part.fd, part.inode, part.offset) == (whole.fd, whole.inode, whole.offset + 40)


def test_arrays_do_not_overlap_and_begin_at_cache_lines() -> None:
    arena = Arena()
    arrays = [arena.empty(size, FLOAT32) for size in (1, 17, 1000, 3)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert [set(array) for array in arrays] == [{0.0}, {1.0}, {2.0}, {3.0}]
    assert all(array.ctypes.data % 64 == 0 for array in arrays)


def test_a_large_array_has_a_file_of_its_own_and_small_ones_share_one() -> None:
    arena = Arena()
    first = place_of(arena, arena.empty(10, FLOAT32))
    large = place_of(arena, arena.empty(SEGMENT_BYTES, np.dtype(np.uint8)))
    second = place_of(arena, arena.empty(10, FLOAT32))
    assert first.fd == second.fd != large.fd
    assert large.offset == 0


def test_memory_of_others_and_empty_arrays_have_no_place() -> None:
    arena = Arena()
    arena.empty(10, FLOAT32)
    assert arena.place(np.zeros(10, np.float32)) is None
    assert arena.place(Arena().empty(10, FLOAT32)) is None
    assert arena.empty(0, FLOAT32).size == 0


def test_a_file_cannot_be_resized_by_anybody() -> None:
    arena = Arena()
    place = place_of(arena, arena.empty(10, FLOAT32))
    for nbytes in 0, SEGMENT_BYTES + 1:
        with pytest.raises(PermissionError):
            os.ftruncate(place.fd, nbytes)


def test_files_end_with_their_arena_and_a_mapping_outlives_them() -> None:
    arena = Arena()
    neighbour = befriended(arena)
    array = arena.empty(10, FLOAT32)
    array[:] = 5
    place = place_of(arena, array)
    memory = neighbour.payload(at(place))
    del arena, array
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(place.fd)
    assert set(memory[:40].view(np.float32)) == {5.0}


def test_a_probe_with_another_nonce_proves_nothing() -> None:
    arena = Arena()
    probe = arena.probe
    assert probe is not None
    neighbour = Neighbour("worker 1")
    assert not neighbour.greeted(Probe(probe.pid, probe.place, b"0" * 16), False)
    assert not neighbour.readable
    assert not neighbour.greeted(probe, False), "there is one try"
    with pytest.raises(SharedMemoryError, match="worker 1 refers to shared memory, but has not proved"):
        neighbour.payload(at(probe.place))


def test_without_a_greeting_nothing_is_read() -> None:
    arena = Arena()
    place = place_of(arena, arena.empty(10, FLOAT32))
    with pytest.raises(SharedMemoryError, match="has not proved"):
        Neighbour("worker 1").payload(at(place))


def test_both_directions_are_known_after_three_greetings() -> None:
    arenas = Arena(), Arena()
    worker_at_server, server_at_worker = Neighbour("worker 1"), Neighbour("server 0")
    worker_at_server.greeted(arenas[0].probe, server_at_worker.readable)
    assert server_at_worker.greeted(arenas[1].probe, worker_at_server.readable), "the server has to be told"
    assert not worker_at_server.greeted(arenas[0].probe, server_at_worker.readable), "and that is the end"
    assert worker_at_server.readable and worker_at_server.reads_ours
    assert server_at_worker.readable and server_at_worker.reads_ours


def test_files_that_are_not_ours_are_refused(tmp_path: Path, descriptors: list[int]) -> None:
    neighbour = befriended(Arena())
    (tmp_path / "memfd:autobyte").write_bytes(b"secret" * 100)
    descriptors += [
        os.open(tmp_path / "memfd:autobyte", os.O_RDONLY),
        *os.pipe(),
        os.open("/dev/zero", os.O_RDONLY),
        os.memfd_create("other", os.MFD_ALLOW_SEALING),
        os.memfd_create("autobyte", os.MFD_ALLOW_SEALING),  # might shrink
    ]
    os.truncate(descriptors[-1], 4096)
    for fd in descriptors:
        with pytest.raises(SharedMemoryError, match="cannot read memory of worker 1"):
            neighbour.payload(at(Place(fd, os.fstat(fd).st_ino, 0)))
    for fd in -1, 10**9, 2**63 - 1:
        with pytest.raises(SharedMemoryError, match="cannot read memory of worker 1"):
            neighbour.payload(at(Place(fd, 1, 0)))


def test_a_descriptor_that_has_become_another_file_is_refused() -> None:
    arena = Arena()
    neighbour = befriended(arena)
    place = place_of(arena, arena.empty(10, FLOAT32))
    with pytest.raises(SharedMemoryError, match="another file than the one announced"):
        neighbour.payload(at(Place(place.fd, place.inode + 1, 0)))


def test_places_out_of_the_file_are_refused() -> None:
    arena = Arena()
    neighbour = befriended(arena)
    place = place_of(arena, arena.empty(10, FLOAT32))
    assert neighbour.payload(at(Place(place.fd, place.inode, SEGMENT_BYTES))).size == 0
    for offset in -1, SEGMENT_BYTES + 1, 2**63 - 1:
        with pytest.raises(SharedMemoryError, match=f"worker 1 refers to byte {offset}"):
            neighbour.payload(at(Place(place.fd, place.inode, offset)))


def test_only_raw_elements_may_be_shared() -> None:
    arena = Arena()
    neighbour = befriended(arena)
    place = place_of(arena, arena.empty(10, FLOAT32))
    for span in at(place, SpanKind.PUSH_ROWS, 40), at(place, SpanKind.PULL_ROWS), at(place, SpanKind.PUSH, 40):
        with pytest.raises(SharedMemoryError, match="only raw elements"):
            neighbour.payload(span)


def test_a_peer_cannot_make_this_process_map_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    neighbour = befriended(Arena())
    monkeypatch.setattr(shared, "_map", lambda pid, place: np.zeros(1, np.uint8))
    with pytest.raises(SharedMemoryError, match=f"worker 1 shares more than {MAX_SEGMENTS} files"):
        for fd in range(MAX_SEGMENTS + 1):
            neighbour.payload(at(Place(fd, fd, 0)))


def _none(*_: object) -> int:
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize("missing", ["function", "memory"])
def test_where_no_memory_can_be_shared_arrays_are_ordinary(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing == "function":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "ftruncate", _none)
    arena = Arena()
    array = arena.empty(10, FLOAT32)
    array[:] = 1
    assert array.sum() == 10
    assert arena.place(array) is None
    assert arena.probe is None
    assert not Neighbour("worker 1").greeted(None, False)
