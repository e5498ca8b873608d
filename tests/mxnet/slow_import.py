"""A module that takes long to import, as MXNet does from a slow disk."""

import time

time.sleep(5)
