"""``python -m scheduler.launch``, the same as ``autobyte-launch``."""

from scheduler.launch.command import main

main()
