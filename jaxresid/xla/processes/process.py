"""Run one compile in a process of its own, so that there is an answer whatever happens to it."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from jaxresid.base.errors import JaxresidError
from jaxresid.base.text.units import format_bytes
from jaxresid.xla.hlo.warnings import messages
from jaxresid.xla.job import Compilation, Job
from jaxresid.xla.processes import child as children
from jaxresid.xla.processes.child import Child, DiedError, FailedError, one_line

_LOGGER = logging.getLogger("jaxresid")
COMPILER = "jaxresid.xla.compiler:compilation"
_MEMORY_EVERY_S = 0.25  # finding a process's children reads the whole process table


class _StopError(Exception):
    """An error that says why a compile is not waited for; all such reasons are transient."""


def execute(
    job: Job, *, compiler: str = COMPILER, stop: threading.Event | None = None
) -> Compilation:
    """Return the result of a compile, or why there is none.

    There is none where its process is killed, ran out of its time or memory, aborts, or cannot
    import what it needs. None of these raises. The memory is looked at a few times a second, so a
    compile can take more than its limit for a moment.

    Args:
      job: the compile.
      compiler: `module:function`, from a Job to a Compilation; imported in the child.
      stop: once it is set the compile is given up.
    """
    try:
        # A compiler that is killed leaves what it dumps where it dumped it.
        with tempfile.TemporaryDirectory(prefix="jaxresid-", ignore_cleanup_errors=True) as scratch:
            return _executed(job, compiler, stop, scratch)
    except OSError as e:
        error = f"the compiler's files cannot be written: {e.strerror or e}"
        return Compilation(error=error, transient=True)


def _executed(job: Job, compiler: str, stop: threading.Event | None, scratch: str) -> Compilation:
    start = time.monotonic()
    try:
        watch = _watch(job, start, stop)
        environment = {**_env(job), "TMPDIR": scratch, children.SCRATCH: scratch}
    except ImportError:
        return Compilation(error="a memory limit needs psutil: pip install psutil")
    except JaxresidError as e:
        return Compilation(error=one_line(e).partition(": ")[2])
    try:
        child = Child(
            f"from jaxresid.xla.processes.process import serve; serve({compiler!r})", environment
        )
    except OSError as e:
        error = f"the compiler's process cannot be started: {e.strerror or e}"
        return Compilation(error=error, transient=True)
    try:
        found = child.ask(job, lambda: watch(child.pid))
        if isinstance(found, Compilation) and found.error is not None:
            _LOGGER.debug("%s", child.log())
    except (_StopError, DiedError) as e:
        log = child.log()
        _LOGGER.debug("%s", log)
        return Compilation(
            error=str(e),
            transient=isinstance(e, _StopError) or e.killed,
            seconds=time.monotonic() - start,
            messages=messages(log),
        )
    except FailedError as e:
        _LOGGER.debug("%s", child.log())
        return Compilation(error=str(e), seconds=time.monotonic() - start)
    except Exception as e:
        return Compilation(error=f"the program cannot be sent to a process: {one_line(e)}")
    finally:
        child.close()
    if not isinstance(found, Compilation):
        return Compilation(error=f"{compiler} returned {type(found).__name__}, not a Compilation")
    return found


def serve(compiler: str) -> None:
    """Answer jobs in the child process."""

    def answer(job: Job) -> Compilation:
        module, _, function = compiler.partition(":")
        try:
            result: Compilation = getattr(importlib.import_module(module), function)(job)
            return result
        except ImportError as e:
            # Another machine, or this one after an installation, may have it.
            python = sys.executable
            return Compilation(error=f"cannot compile with {python}: {one_line(e)}", transient=True)

    children.serve(answer)


def _env(job: Job) -> dict[str, str | None]:
    """Return what differs in the child's environment; None: is not set.

    With it the child touches no accelerator that it does not compile for, and finds as many CPU
    devices as the program is for.
    """
    platform = job.place.platform
    names: dict[str, str | None] = {
        "JAX_NUM_CPU_DEVICES": str(job.module.devices) if platform == "cpu" else None,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # Without it libtpu asks Google Cloud's metadata server, for minutes where there is none.
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LOG_DIR": "disabled",
        # Warnings, which go to the log that `xla.hlo.warnings` reads.
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TPU_MIN_LOG_LEVEL": "1",
        "TPU_STDERR_LOG_LEVEL": "1",
    }
    if not job.place.is_here or platform == "cpu":
        names["JAX_PLATFORMS"] = "cpu"
    elif os.environ.get("JAX_PLATFORMS") == "cpu":  # so that tracing leaves the GPU alone
        names["JAX_PLATFORMS"] = None
    return names


def _watch(job: Job, start: float, stop: threading.Event | None) -> Callable[[int], None]:
    """Return a function that raises _StopError when the process of an id should end.

    Raises:
      ImportError: psutil is missing and memory is limited.
    """
    psutil = None if job.memory_nbytes is None else importlib.import_module("psutil")
    look_at = start

    def watch(pid: int) -> None:
        nonlocal look_at
        if stop is not None and stop.is_set():
            raise _StopError("interrupted")
        now = time.monotonic()
        if now - start > job.timeout_s:
            raise _StopError(f"took longer than {job.timeout_s:g} s")
        if psutil is not None and now >= look_at:
            look_at = now + _MEMORY_EVERY_S
            assert job.memory_nbytes is not None
            taken = _memory(psutil, pid)
            if taken > job.memory_nbytes:
                limit = format_bytes(job.memory_nbytes)
                raise _StopError(f"took {format_bytes(taken)} of memory, over its limit of {limit}")

    return watch


def _memory(psutil: ModuleType, pid: int) -> int:
    """Return the resident memory of a process and of those it started, in bytes.

    Shared pages count once for each.
    """
    try:
        process = psutil.Process(pid)
        processes: list[Any] = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return total
