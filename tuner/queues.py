"""What a large credit costs on real links, which no simulation shows: bytes that wait where no priority reaches them.

Once in a socket, bytes leave first in, first out. On a slow link a large credit keeps kernels and switches full of them
in both directions: TCP's acknowledgements wait behind data, connections that share a link get unequal parts of it, and
steps take longer than the wire needs. In the emulated cluster steps took about as long as simulated while the credit
left a host within 0.1 s, 1.08 to 1.2 times as long with 0.3 to 1.3 s (docs/simulator.md), in other jobs up to 1.4 times
with 0.3 and 0.6 s (docs/tuning.md). So a candidate that queues more than the configuration in force does is believed to
lose a part for each doubling. One that queues less is not believed to gain by that.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from ps.config import CommConfig
from tuner.predictor import Prediction
from tuner.situation import Situation

__all__ = ["with_queues"]

#: A credit that leaves a host within this time is free, ...
FREE_SECONDS = 0.1
#: ... and each doubling costs this part of the time in which the link is in use. So much of that is doubt.
LOSS = 0.05
DOUBT = 0.5


def with_queues(situation: Situation, candidates: Sequence[CommConfig], prediction: Prediction) -> Prediction:
    """Return ``prediction`` less what ``candidates`` lose by bytes that wait in sockets and switches."""
    bandwidth = situation.bandwidth_bytes_per_second
    if bandwidth is None or not situation.model_bytes:
        return prediction
    credits = np.array([config.credit_bytes for config in (situation.config, *candidates)], float)
    seconds = np.minimum(credits, situation.model_bytes) / bandwidth.least
    doublings = np.log2(np.maximum(1.0, seconds / FREE_SECONDS))
    uses = [use for use in (situation.worker_use, situation.server_use) if use is not None]
    loss = LOSS * min(1.0, max(uses, default=1.0)) * np.maximum(0.0, doublings[1:] - doublings[0])
    return Prediction(prediction.log_speedup - loss, np.hypot(prediction.spread, DOUBT * loss))
