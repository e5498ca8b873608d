"""One plain TCP stream, the yardstick of a network: what it carries, and under which congestion control.

``stream.py receive ADDRESS SECONDS`` prints the payload in Mbit/s that arrived within SECONDS after a short
start-up; ``stream.py send ADDRESS`` sends until the receiver has seen enough, and prints the congestion
control of its socket.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from typing import Sequence

PORT = 9090
#: Slow start and the first full buckets are over by then.
START_UP_SECONDS = 0.3
PATIENCE_SECONDS = 10.0


def congestion_control(connection: socket.socket) -> str:
    """Return the congestion control that a connected TCP socket uses."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()


def receive(address: str, seconds: float) -> float:
    """Return the Mbit/s of payload that the first stream to come carries for ``seconds``."""
    buffer = bytearray(1 << 20)
    with socket.create_server((address, PORT)) as listener:
        listener.settimeout(PATIENCE_SECONDS)
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(PATIENCE_SECONDS)
        start = time.monotonic() + START_UP_SECONDS
        while time.monotonic() < start:
            connection.recv_into(buffer)
        received_bytes, start, now = 0, time.monotonic(), 0.0
        while now < start + seconds:
            received_bytes += connection.recv_into(buffer)
            now = time.monotonic()
    return received_bytes * 8e-6 / (now - start)


def send(address: str) -> str:
    """Send to ``address`` until the receiver closes; return the congestion control that was used."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            connection = socket.create_connection((address, PORT), timeout=PATIENCE_SECONDS)
            break
        except ConnectionRefusedError:  # the receiver is not up yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    with connection:
        used = congestion_control(connection)
        chunk = bytes(1 << 18)
        with contextlib.suppress(ConnectionError):
            while True:
                connection.sendall(chunk)
    return used


def main(arguments: Sequence[str]) -> None:
    if arguments[0] == "receive":
        print(receive(arguments[1], float(arguments[2])))
    else:
        print(send(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
