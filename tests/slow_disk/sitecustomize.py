"""A slow disk for every Python process of a test session: Python imports this module by itself where its folder is on PYTHONPATH.

FROSTLINE_TEST_SLOW_DISK: the mean time that an fsync takes longer, in seconds. So what waits for a durable write comes later than
what does not, by a time that differs from write to write: a test that expects the one right after the other fails.
"""

import os
import random
import time

_sync, _mean_seconds = os.fsync, float(os.environ.get("FROSTLINE_TEST_SLOW_DISK", "0"))


def _slow_sync(file: int) -> None:
    time.sleep(random.uniform(0, 2 * _mean_seconds))
    _sync(file)


if _mean_seconds > 0:
    os.fsync = _slow_sync
