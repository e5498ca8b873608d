"""Cases that all workers of one job run one after the other; what each returns is compared with what it should be.

One job runs the cases of all test modules that have a ``cases`` (fixture ``results``): most of a small job's time is
the import of MXNet in each of its processes. Every case has stores of its own.
"""

from __future__ import annotations

import itertools
import json

import ps.mxnet  # noqa: F401  # isort: skip (before mxnet: on Python 3.12 it makes that importable)

import mxnet as mx

from ps.mxnet import connection
from tests.cluster.harness import Cluster

#: What a case prints itself is not its result.
MARK = "result "


class Cases:
    """The cases of one test module, by name."""

    def __init__(self):
        self.functions = {}
        self.expected = {}

    def case(self, expected=None, by_rank=None):
        """Give all ranks of two, or each of them, what it has to return."""

        def add(function):
            self.functions[function.__name__] = function
            self.expected[function.__name__] = list(by_rank or [expected, expected])
            return function

        return add

    def main(self, module):
        """Run by each worker."""
        for name, function in self.functions.items():
            try:
                result = function()
                mx.nd.waitall()
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            print(MARK + json.dumps([module, name, result], default=float), flush=True)


def rank():
    """Return this worker's rank."""
    return connection.connect().worker.rank


def run(modules, timeout=110):
    """Run a job of two workers and two servers; return what each case returned on each rank, by module and name."""
    env = {"AUTOBYTE_OPTIMIZER_MODULES": "tests.mxnet.own_optimizer"}
    source = "".join(f"import {name}\n{name}.cases.main({name!r})\n" for name in modules)
    with Cluster(workers=2, servers=2, env=env) as cluster:
        workers = cluster.run(source, timeout=timeout)
        assert cluster.finish() == [0, 0, 0]
        lines = [[line for line in worker.stdout.splitlines() if line.startswith(MARK)] for worker in workers]
    found = {}
    for line in itertools.chain(*lines):
        module, name, result = json.loads(line[len(MARK) :])
        found.setdefault((module, name), []).append(result)
    return found
