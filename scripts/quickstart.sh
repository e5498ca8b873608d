#!/usr/bin/env bash
# From a bare checkout to a Gluon job trained on real data: handwritten digits, 1 scheduler, 2 servers and 2 workers on
# this machine, with a tuner on. Ends with 0 only if the held-out accuracy is at least 0.97.
# Arguments go to autobyte-launch: scripts/quickstart.sh --tuner autobyte
set -euo pipefail
source "$(dirname "$0")/venv.sh" mxnet
cd "$root"

events=$(mktemp)
trap 'rm -f "$events"' EXIT
"$python" -m scheduler.launch -n 2 -s 2 --tuner rule \
    --env AUTOBYTE_EVENT_FILE="$events" --env AUTOBYTE_WINDOW_SECONDS=0.5 "$@" \
    "$python" examples/train_digits.py --min-accuracy 0.97

echo
echo "what the tuner decided, and why:"
"$python" - "$events" <<'PYTHON'
import sys
import msgspec
from scheduler.events import Event

with open(sys.argv[1], "rb") as lines:
    for line in lines:
        event = msgspec.json.decode(line, type=Event)
        print(f"{event.seconds:6.1f} s  {event}")
PYTHON
