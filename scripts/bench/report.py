"""The figures of a benchmark: how they are drawn from the iterations, and the table that shows them."""

from __future__ import annotations

import statistics
from typing import Any, Dict, List, Optional, Sequence

from rich.table import Table

from emulation import payload_share

__all__ = ["QUIET_CORES", "Block", "ideal_seconds", "quartiles", "store_table", "summary"]

#: One store's share of a round: what the job's processes did in a row of iterations.
Block = Dict[str, Any]
#: Above this many cores used by others a figure is marked.
QUIET_CORES = 0.1


def ideal_seconds(model_bytes: int, num_workers: int, num_servers: int, rate_mbit: float) -> float:
    """Return how long one iteration must take on full-duplex links: max(M / B, W M / (S B)).

    M is what one worker pushes and B what TCP payload a link carries, both in bytes: each worker sends and receives M,
    each of S servers its share of W M.
    """
    bytes_per_second = rate_mbit * 1e6 / 8 * payload_share()
    return max(1.0, num_workers / num_servers) * model_bytes / bytes_per_second


def quartiles(values: Sequence[float]) -> Dict[str, float]:
    """Return median and quartiles (inclusive: those of the values themselves)."""
    if len(values) == 1:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def summary(blocks: List[Block], model_bytes: int, num_workers: int, ideal: Optional[float]) -> Dict[str, Any]:
    """Return the figures of one store from its blocks.

    CPU seconds are per GB (1e9 bytes) of gradient summed: what all workers push together.
    """
    seconds = [value for block in blocks for value in block["seconds"]]
    median = statistics.median(seconds)
    pushed_gb = len(seconds) * num_workers * model_bytes / 1e9
    cpu = {
        role: {kind: sum(block["cpu_seconds"][role][kind] for block in blocks) / pushed_gb for kind in kinds}
        for role, kinds in blocks[0]["cpu_seconds"].items()
    }
    return {
        "seconds": quartiles(seconds),
        "first_tensor_seconds": quartiles([value for block in blocks for value in block["first_tensor_seconds"]]),
        "bytes_per_second": model_bytes / median,
        "ratio_to_ideal": median / ideal if ideal else None,
        "cpu_seconds_per_gb": sum(sum(kinds.values()) for kinds in cpu.values()),
        "cpu_seconds_per_gb_by_role": cpu,
        "peak_bytes": {role: max(block["peak_bytes"][role] for block in blocks) for role in blocks[0]["peak_bytes"]},
        "others_cores": max(block["others_cores"] for block in blocks),
        "blocks": blocks,
    }


def store_table(title: str, stores: Dict[str, Dict[str, Any]]) -> Table:
    """Return the table of all stores, a row each."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("store")
    for heading in ("s/iteration\n(quartiles)", "first\ntensor s", "MB/s per\nworker", "times\nideal",
                    "CPU s\nper GB", "worker\nuser+sys", "server\nuser+sys", "peak MB\nworker", "peak MB\nserver",
                    "others'\ncores"):  # fmt: skip
        table.add_column(heading, justify="right")
    for name, figures in stores.items():
        seconds, ratio, cpu = figures["seconds"], figures["ratio_to_ideal"], figures["cpu_seconds_per_gb_by_role"]
        busy = figures["others_cores"] > QUIET_CORES
        table.add_row(
            name,
            f"{seconds['median']:.4f}\n({seconds['q1']:.4f}-{seconds['q3']:.4f})",
            f"{figures['first_tensor_seconds']['median']:.4f}",
            f"{figures['bytes_per_second'] / 1e6:.0f}",
            "-" if ratio is None else f"{ratio:.3f}",
            f"{figures['cpu_seconds_per_gb']:.2f}",
            *(f"{cpu[role]['user']:.2f}+{cpu[role]['system']:.2f}" for role in ("worker", "server")),
            *(f"{figures['peak_bytes'][role] / 1e6:.0f}" for role in ("worker", "server")),
            f"{figures['others_cores']:.2f}{' (!)' if busy else ''}",
            style="yellow" if busy else None,
        )
    if any(figures["others_cores"] > QUIET_CORES for figures in stores.values()):
        table.caption = f"(!) others used more than {QUIET_CORES} core meanwhile: repeat that row on a quiet machine"
    return table
