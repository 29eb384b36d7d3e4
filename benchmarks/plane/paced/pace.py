"""Let a script compute on a share of a core, so that minutes of training cost seconds: it sleeps after each slice."""

import atexit
import signal
import time

SLICE_S = 0.004


def pace(share):
    """Sleep so long after each slice of CPU time that the share of a core is kept; ``share`` 1 is full speed."""
    if not 0 < share < 1:
        return
    signal.signal(signal.SIGPROF, lambda *_: time.sleep(SLICE_S * (1 - share) / share))
    signal.setitimer(signal.ITIMER_PROF, SLICE_S, SLICE_S)
    atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)  # what exits listens to no signal any more
