"""Cases that all workers of one job run one after the other; what each returns is compared with what it should be."""

from __future__ import annotations

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

    def main(self):
        """Run by each worker."""
        for name, function in self.functions.items():
            try:
                result = function()
                mx.nd.waitall()
            except Exception as error:
                result = f"{type(error).__name__}: {error}"
            print(MARK + json.dumps([name, result], default=float), flush=True)

    def results(self, module, servers=1, timeout=55, **env):
        """Run a job of two workers; return what each case returned on each rank."""
        env = {"AUTOBYTE_DEADLINE_SECONDS": "5", **env}
        with Cluster(workers=2, servers=servers, env=env) as cluster:
            workers = cluster.run(f"from {module} import cases\ncases.main()", timeout=timeout)
            assert cluster.finish() == [0] * (1 + servers)
            lines = [[line for line in worker.stdout.splitlines() if line.startswith(MARK)] for worker in workers]
        answers = [dict(json.loads(line[len(MARK) :]) for line in of_worker) for of_worker in lines]
        return {name: [answer.get(name) for answer in answers] for name in self.functions}


def rank():
    """Return this worker's rank."""
    return connection.connect().worker.rank
