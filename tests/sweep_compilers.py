"""Stand-ins for `xla.compiler.compilation` that leave a line for each compile in the file named by
SWEEP_LOG; children and workers import them."""

import os
import time
from pathlib import Path

from jaxresid.xla.job import Compilation

CAPACITY = 1000


def _log(what, job):
    """Adds a line; gives all up to it."""
    line = f"{what} {job.label}\n".encode()
    log = os.open(os.environ["SWEEP_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, line)
    end = os.lseek(log, 0, os.SEEK_CUR)
    os.close(log)
    return Path(os.environ["SWEEP_LOG"]).read_bytes()[:end].decode()


def quick(job):
    """A program of as many bytes as its batch has hundreds."""
    _log("compiled", job)
    batch = next((int(w) for w in reversed(job.label.split()) if w.isdigit()), 1)
    stats = {"temp_nbytes": batch * 100, "peak_nbytes": batch * 100}
    return Compilation(stats=stats, capacity_nbytes=CAPACITY, seconds=0.5, compiler="none 1.0")


def slow(job):
    _log("began", job)
    time.sleep(0.5)
    return quick(job)


def hangs_from_the_third(job):
    """The first two work, the others take longer than anybody waits."""
    if _log("began", job).count("began") > 2:
        time.sleep(600)
    return quick(job)


def killed_once(job):
    """What another try does not meet, at everybody's first."""
    if _log("tried", job).count(f"tried {job.label}\n") == 1:
        return Compilation(error="killed", transient=True)
    return quick(job)


def refuses(job):
    _log("tried", job)
    return Compilation(error="INVALID_ARGUMENT: no")
