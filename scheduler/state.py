"""What a tuner has learned, kept in a file, so that a restarted job goes on where it ended.

The file is replaced in one piece: whoever reads it finds the old content or the new one, never a part. It is bounded in
size, and it is never more than a help: one that cannot be read, or makes no sense to the tuner, is reported and
ignored, and one that cannot be written is reported once.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from tuner.interface import Tuner

__all__ = ["StateFile"]

log = logging.getLogger("autobyte.tuning")

#: A larger file is none of ours.
MAX_STATE_BYTES = 4 << 20


class StateFile:
    """The file that ``AUTOBYTE_TUNER_STATE`` names.

    Parameters
    ----------
    path
        Empty: nothing is kept.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._failed = False

    def restore(self, tuner: Tuner) -> None:
        """Give ``tuner`` what an earlier one has left, if it has."""
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                state = file.read(MAX_STATE_BYTES + 1)
            if len(state) > MAX_STATE_BYTES:
                raise ValueError(f"larger than {MAX_STATE_BYTES} bytes")
            tuner.restore(state)
        except FileNotFoundError:
            return  # the first run of the job
        except Exception as error:  # whatever is wrong with it, the job runs without it
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("AUTOBYTE_TUNER_STATE=%r is ignored: %s", str(self._path), reason)
        else:
            log.info("the tuner goes on with what it had learned (%s)", self._path)

    def keep(self, state: bytes) -> None:
        """Replace the content of the file."""
        if self._path is None or self._failed:
            return
        written = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            if len(state) > MAX_STATE_BYTES:
                raise OSError(0, f"the state has more than {MAX_STATE_BYTES} bytes")
            written.write_bytes(state)
            os.replace(written, self._path)
        except OSError as error:
            self._failed = True
            log.warning("AUTOBYTE_TUNER_STATE=%r cannot be written: %s", str(self._path), error.strerror)
            with contextlib.suppress(OSError):
                written.unlink()
