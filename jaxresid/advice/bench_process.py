"""A bench in a process of its own, which running out of memory may end: both ends of the pipe.

Messages are pickles. To the process go first the bench's arguments, then names of methods with
their arguments; each is answered by whether it worked, and the result or the reason.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO

from jaxresid.advice.bench import Bench
from jaxresid.advice.drawing import Draw
from jaxresid.inspector import _jax
from jaxresid.inspector.failures import summary
from jaxresid.units import format_bytes

_START = "from jaxresid.advice.bench_process import serve; serve()"


class FailedError(Exception):
    """A program raised; the message says what."""


class DiedError(Exception):
    """The process ended; the message says how."""


def reason(error: BaseException) -> str:
    """Why a program did not run, in one line."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" not in text and "out of memory" not in text.lower():
        return summary(error)
    wanted = re.search(r"allocat\w+ (\d+) bytes", text)
    return "out of memory" + (f": needs {format_bytes(int(wanted[1]))} more" if wanted else "")


class BenchProcess:
    """The bench as seen from here."""

    def __init__(self, draws: Sequence[Draw], seed: int) -> None:
        """Starts the process and draws the inputs.

        Raises:
          FailedError, DiedError: the inputs cannot be made there.
        """
        # Packages that only a changed sys.path finds are found there too, after those of its own:
        # the user's directory may hold a queue.py.
        paths = f"import sys; sys.path += [p for p in {sys.path!r} if p not in sys.path]"
        x64 = bool(_jax.flags().get("jax_enable_x64"))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"{paths}\n{_START}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": str(int(x64))},
        )
        try:
            self._ask((tuple(draws), seed))
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any) -> Any:
        """Calls a method of the bench.

        Raises:
          FailedError: it raised.
          DiedError: the process ended.
        """
        return self._ask((method, args))

    def close(self) -> None:
        """Ends the process, whatever it does, and waits until it is gone."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait()
        self._log.close()

    def _ask(self, message: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, message)
            worked, answer = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise DiedError(self._death()) from None
        if not worked:
            raise FailedError(answer)
        return answer

    def _death(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "killed (out of memory?)"
        how = f"its process ended with {code}" if code >= 0 else signal.Signals(-code).name
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4096))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{how}: {last:.200}" if last else how


def serve(bench: type[Bench] = Bench) -> None:
    """The other end: answers until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks decides
    # If memory runs out, the kernel should end this process rather than any other.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    made: Bench | None = None
    while True:
        message = messages.get()
        answer: tuple[bool, Any]
        try:
            if made is None:
                made = bench(*message)
                answer = True, None
            else:
                method, args = message
                answer = True, getattr(made, method)(*args)
        except Exception as e:
            answer = False, reason(e)
        _send(answers, answer)


def _listen(messages: queue.SimpleQueue[Any]) -> None:
    """Reads what is asked, and ends this process in the midst of whatever it does when the other
    end is gone."""
    while True:
        try:
            messages.put(pickle.load(sys.stdin.buffer))
        except EOFError:
            os._exit(0)


def _send(pipe: BinaryIO | Any, message: Any) -> None:
    pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()
