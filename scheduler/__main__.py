"""``python -m scheduler``: the same as the command ``autobyte-scheduler``."""

from scheduler.process import main

if __name__ == "__main__":
    main()
