"""The figures of a benchmark, from literal iterations."""

from __future__ import annotations

from typing import Any, Dict

import pytest
from rich.console import Console

from bench.report import ideal_seconds, quartiles, store_table, summary


def block(**changes: Any) -> Dict[str, Any]:
    return {
        "seconds": [1.0, 2.0, 3.0],
        "first_tensor_seconds": [0.1, 0.2, 0.3],
        "cpu_seconds": {
            "scheduler": {"user": 0.0, "system": 0.0},
            "server": {"user": 0.6, "system": 1.2},
            "worker": {"user": 1.2, "system": 1.8},
        },
        "peak_bytes": {"scheduler": 1, "server": 5_000_000, "worker": 7_000_000},
        "others_cores": 0.01,
        **changes,
    }


def test_the_ideal_of_as_many_servers_as_workers_is_the_workers_own_link() -> None:
    # 102.3 MB at 1 Gbit/s, of which 1448/1514 is payload
    assert ideal_seconds(102_303_648, 2, 2, 1000.0) == pytest.approx(0.8557, abs=1e-4)
    assert ideal_seconds(553_430_176, 2, 2, 1000.0) == pytest.approx(4.629, abs=1e-3)
    assert ideal_seconds(102_303_648, 2, 4, 1000.0) == ideal_seconds(102_303_648, 2, 2, 1000.0)


def test_with_fewer_servers_than_workers_the_servers_links_bound() -> None:
    assert ideal_seconds(102_303_648, 4, 1, 1000.0) == pytest.approx(4 * 0.8557, abs=1e-3)


def test_quartiles_are_those_of_the_values_themselves() -> None:
    assert quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == {"median": 3.0, "q1": 2.0, "q3": 4.0}
    assert quartiles([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0}


def test_a_summary_counts_cpu_per_gb_that_all_workers_push() -> None:
    figures = summary([block(), block()], model_bytes=100_000_000, num_workers=2, ideal=1.6)
    assert figures["seconds"]["median"] == 2.0
    assert figures["first_tensor_seconds"]["median"] == 0.2
    assert figures["bytes_per_second"] == 50_000_000
    assert figures["ratio_to_ideal"] == 1.25
    # 6 iterations of 2 x 0.1 GB, 2 x (1.8 + 3.0) CPU seconds
    assert figures["cpu_seconds_per_gb"] == pytest.approx(8.0)
    assert figures["cpu_seconds_per_gb_by_role"]["worker"] == pytest.approx({"user": 2.0, "system": 3.0})
    assert figures["peak_bytes"]["worker"] == 7_000_000


def test_a_row_taken_while_others_were_busy_is_marked() -> None:
    stores = {
        "quiet": summary([block()], 100_000_000, 2, None),
        "disturbed": summary([block(), block(others_cores=0.4)], 100_000_000, 2, None),
    }
    console = Console(width=160, record=True)
    console.print(store_table("title", stores))
    rows = console.export_text().splitlines()
    assert "(!)" in next(row for row in rows if "disturbed" in row)
    assert "(!)" not in next(row for row in rows if "quiet" in row)
    assert any("repeat that row on a quiet machine" in row for row in rows)
