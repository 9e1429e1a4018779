"""A child process that a compiler or a lack of memory may end: both ends of its pipes.

Messages are pickles. Each that is sent is answered by whether it worked, and the result or the
reason. The child is in a session of its own, where a terminal's Ctrl-C does not reach it, and it
ends when the other end of its pipes is gone, whatever it is doing then.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, BinaryIO

from jaxresid.base.text.short_repr import cut

_LOG_TAIL_NBYTES = 1 << 20
_REASON_LENGTH = 300
_EXIT_GRACE_S = 10.0
_POLL_S = 0.1
# Names a folder of the child's own, which goes with it where the other end cannot see to that.
SCRATCH = "JAXRESID_SCRATCH"

# What a log line of absl begins with: a severity, the date, the time and the thread.
_PREFIX = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\S*\s+\d+ |^what\(\):\s*")
_FATAL = re.compile(
    r"^F\d{4} |Check failed|LLVM ERROR|^terminate called|^what\(\):|Assertion .{1,200}? failed"
)
# What absl's, LLVM's and Python's handlers of a crash begin with. libtpu's goes on to tell that it
# cannot send a dump.
_CRASH = re.compile(
    r"^(\*\*\* \w|PC: @|https://symbolize|Fatal Python error|Stack dump|PLEASE submit)"
)
# Whatever else libtpu writes to its log on a machine without a TPU.
_NOISE = re.compile(r"^[IWE]\d{4} |^WARNING|: WARNING|^=== |^\S+\.cc:\d+$")


class FailedError(Exception):
    """An error for a child that could not do what it was asked; the message says why."""


class DiedError(Exception):
    """An error for a child that ended; the message says how.

    Attributes:
      killed: whether it was killed by someone else, who may not do so again.
    """

    def __init__(self, reason: str, *, killed: bool = False) -> None:
        super().__init__(reason)
        self.killed = killed


class Child:
    """A Python process, as seen from the process that starts it.

    Args:
      start: Python code that calls `serve`.
      environment: what differs from the environment here; None: is not set.

    Raises:
      OSError: it cannot be started.
    """

    def __init__(self, start: str, environment: Mapping[str, str | None]) -> None:
        # Packages that only a changed sys.path finds are found there too, after those of its own:
        # the user's directory may hold a queue.py.
        # Whoever asks decides when it ends, and an import does not survive a Ctrl-C.
        deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
        paths = f"{deaf}; import sys; sys.path += [p for p in {sys.path!r} if p not in sys.path]"
        changed = {name: value for name, value in environment.items() if value is not None}
        kept = {name: value for name, value in os.environ.items() if name not in environment}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"{paths}\n{start}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env=kept | changed,
                start_new_session=True,
            )
        except BaseException:
            self._log.close()
            raise
        self._exchange: threading.Thread | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, message: Any, watch: Callable[[], None] | None = None) -> Any:
        """Return the answer to a message.

        Args:
          watch: is called ten times a second meanwhile; what it raises is raised, and the child can
            then only be closed.

        Raises:
          FailedError: the child answers that it failed.
          DiedError: the child ended.
          Exception: the message cannot be pickled.
        """
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        # In a thread, as a child that hangs before it reads blocks even the sending.
        answers: queue.SimpleQueue[tuple[bool, Any] | None] = queue.SimpleQueue()
        self._exchange = threading.Thread(target=self._talk, args=(data, answers), daemon=True)
        self._exchange.start()
        while True:
            try:
                answer = answers.get(timeout=None if watch is None else _POLL_S)
                break
            except queue.Empty:
                assert watch is not None
                watch()
        if answer is None:
            raise self._exit_reason()
        worked, result = answer
        if not worked:
            raise FailedError(result)
        return result

    def log(self) -> str:
        """Return the end of what the child has written to its standard error, at most 1 MiB."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _LOG_TAIL_NBYTES))
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """End the child and what it started, whatever they do, and wait until it is gone."""
        if self._closed:
            return
        self._closed = True
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (AttributeError, OSError):  # Windows; or all have ended
            self._process.kill()
        self._process.wait()
        if self._exchange is not None:
            self._exchange.join(_EXIT_GRACE_S)
            if self._exchange.is_alive():  # what it started and got away has the pipe, too
                return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._log.close()

    def _talk(self, data: bytes, answers: queue.SimpleQueue[tuple[bool, Any] | None]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
            answers.put(pickle.load(self._process.stdout))
        except (EOFError, OSError, pickle.UnpicklingError):
            answers.put(None)
        except Exception as e:  # the answer is of a class that cannot be made here
            answers.put((False, one_line(e)))

    def _exit_reason(self) -> DiedError:
        try:
            code = self._process.wait(_EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return DiedError("its process no longer answers", killed=True)
        if -code in (signal.SIGKILL, signal.SIGTERM):
            by = "killed (out of memory?)" if -code == signal.SIGKILL else "killed (SIGTERM)"
            return DiedError(by, killed=True)
        how = f"its process exited with code {code}" if code >= 0 else signal.Signals(-code).name
        line = fatal_line(self.log())
        return DiedError(f"{how}: {line}" if line else how)


def fatal_line(log: str) -> str:
    """Return the line of a log that tells why its process ended, shortened; '' if there is none.

    It is the last line that reports a fatal failure before the output of a crash handler begins;
    without one, the last line there that is not a log line.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    lines = list(takewhile(lambda line: not _CRASH.search(line), lines))
    fatal = [line for line in lines if _FATAL.search(line)]
    telling = fatal or [line for line in lines if not _NOISE.search(line)]
    return cut(_PREFIX.sub("", telling[-1]), _REASON_LENGTH) if telling else ""


def one_line(error: BaseException) -> str:
    """Return an exception as `Type: message`, with the message up to its first empty line."""
    first = re.sub(r"\s+", " ", re.split(r"\n\s*\n", str(error).strip())[0])
    return (
        f"{type(error).__name__}: {cut(first, _REASON_LENGTH)}" if first else type(error).__name__
    )


def serve(answer: Callable[[Any], Any], reason: Callable[[BaseException], str] = one_line) -> None:
    """Answer messages in the child process until nobody asks any more.

    Args:
      reason: returns what is said of an exception that `answer` raises.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If memory runs out, the kernel should end this process rather than any other.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    _forgo_core_dump()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    while True:
        message = messages.get()
        try:
            result = True, answer(message)
        except (Exception, SystemExit) as e:
            result = False, reason(e)
        _send(answers, result, reason)


def _listen(messages: queue.SimpleQueue[Any]) -> None:
    """Read messages, and end this process when the other end is gone.

    It ends in the midst of whatever it does. (XLA compiles without holding the interpreter's lock.)
    """
    while True:
        try:
            messages.put(pickle.load(sys.stdin.buffer))
        except EOFError:
            if scratch := os.environ.get(SCRATCH):
                shutil.rmtree(scratch, ignore_errors=True)
            os._exit(0)
        except Exception as e:  # it is of a class that cannot be made here
            sys.stderr.write(f"{one_line(e)}\n")
            os._exit(1)


def _send(
    pipe: BinaryIO | Any, result: tuple[bool, Any], reason: Callable[[BaseException], str]
) -> None:
    try:
        data = pickle.dumps(result, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as e:
        data = pickle.dumps((False, reason(e)), protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(data)
    pipe.flush()


def _forgo_core_dump() -> None:
    """Turn off core dumps.

    A compiler that aborts should not leave gigabytes in the user's directory.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
