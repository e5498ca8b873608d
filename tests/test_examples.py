"""The examples, in short form: each a job of two workers and two servers, which must learn its task."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
JOB = [sys.executable, "-m", "scheduler.launch", "-n", "2", "-s", "2", sys.executable]


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("example", "epochs", "result", "least"),
    [
        pytest.param("train_digits.py", 4, "accuracy", 0.9, id="image-classifier"),
        pytest.param("classify_docstrings.py", 2, "accuracy", 0.8, id="sparse-text-model", marks=pytest.mark.slow),
        pytest.param("fit_module.py", 6, "accuracy", 0.9, id="module", marks=pytest.mark.slow),
        pytest.param("train_gan.py", 30, "read as asked", 0.5, id="gan", marks=pytest.mark.slow),
    ],
)
def test_an_example_learns(example: str, epochs: int, result: str, least: float) -> None:
    job = subprocess.run(
        [*JOB, str(ROOT / "examples" / example), "--epochs", str(epochs)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert job.returncode == 0, job.stderr
    (value,) = re.findall(rf"^\[worker 0\] {result}: ([0-9.]+)", job.stdout, re.MULTILINE)
    assert float(value) >= least


@pytest.mark.timeout(60)
def test_an_example_that_has_not_learned_enough_fails() -> None:
    alone = [sys.executable, str(ROOT / "examples" / "fit_module.py"), "--epochs", "1", "--min-accuracy", "1.1"]
    job = subprocess.run(alone, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=50)
    assert job.returncode == 1
    assert re.search(r"Error: accuracy 0\.\d{4} is below 1\.1", job.stderr)
