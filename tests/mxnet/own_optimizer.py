"""An optimizer of a user's own, which the servers of a test import."""

import mxnet as mx


@mx.optimizer.register
class Own(mx.optimizer.Optimizer):
    """Adds a share of each gradient."""

    elementwise = True

    def __init__(self, factor, **options):
        super().__init__(**options)
        self.factor = factor

    def create_state(self, index, weight):
        return None

    def update(self, index, weight, grad, state):
        self._update_count(index)
        weight += self.factor * grad
