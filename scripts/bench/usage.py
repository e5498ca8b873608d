"""What processes cost: CPU time and peak memory of one's own, and the CPU that others took meanwhile.

Others are all processes that are neither this one, nor below it, nor the kernel's threads (which work for our
own traffic too). Their use is measured because a figure taken on a busy machine is worth little.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Dict, NamedTuple

import psutil

__all__ = ["CpuSeconds", "OthersWatch", "cpu_seconds", "peak_bytes", "reset_peak"]

KERNEL_THREADS_PARENT = 2


class CpuSeconds(NamedTuple):
    """CPU time in seconds, in a process's own code and in the kernel on its behalf."""

    user: float
    system: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.user + self.system

    def plus(self, other: CpuSeconds) -> CpuSeconds:
        """Return the sum of two."""
        return CpuSeconds(self.user + other.user, self.system + other.system)

    def minus(self, earlier: CpuSeconds) -> CpuSeconds:
        """Return what was used since ``earlier``."""
        return CpuSeconds(self.user - earlier.user, self.system - earlier.system)


def cpu_seconds(pid: int) -> CpuSeconds:
    """Return what a living process has used so far, all its threads together."""
    times = psutil.Process(pid).cpu_times()
    return CpuSeconds(times.user, times.system)


def reset_peak(pid: int) -> None:
    """Let :func:`peak_bytes` start anew from the memory that a process holds now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """Return the most memory that a living process has held, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


class OthersWatch:
    """Measures how many cores others kept busy since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._used = self._others()

    def cores(self) -> float:
        """Return the mean number of cores that others used."""
        used = sum(self._others().values()) - sum(self._used.values())
        return max(0.0, used / (time.monotonic() - self._start))

    @staticmethod
    def _others() -> Dict[int, float]:
        """Return the CPU seconds of every other process, with those of its ended children."""
        this = psutil.Process()
        own = {this.pid, *(child.pid for child in this.children(recursive=True))}
        used = {}
        for process in psutil.process_iter(["ppid", "cpu_times"]):
            if process.pid in own or KERNEL_THREADS_PARENT in (process.pid, process.info["ppid"]):
                continue
            times = process.info["cpu_times"]
            if times is not None:
                used[process.pid] = times.user + times.system + times.children_user + times.children_system
        return used
