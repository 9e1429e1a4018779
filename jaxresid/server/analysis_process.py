"""Run the analysis in a process of its own.

Meanwhile the server answers what else it is asked; and only the main thread of a process can be
interrupted where a file takes too long.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxresid.base.errors import JaxresidError

if TYPE_CHECKING:
    from jaxresid.base.violations import Linted

_SERVE = "from jaxresid.server.analysis_process import serve; serve()"


class AnalysisProcess:
    """An `Analysis` in another process, which starts when it is first needed.

    All but `close` is called by one thread at a time.
    """

    def __init__(self) -> None:
        self._folders: tuple[Path, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None

    def use(self, folders: Sequence[Path]) -> None:
        """Take other folders for the workspace."""
        self._folders = tuple(folders)
        if self._process is not None:
            self._ask("use", self._folders)

    def forget(self) -> None:
        """As for `Analysis`."""
        if self._process is not None:
            self._ask("forget")

    def lint(self, path: Path, open_files: Mapping[Path, bytes]) -> Linted:
        """As for `Analysis`."""
        linted: Linted = self._ask("lint", path, dict(open_files))
        return linted

    def fixed(self, path: Path, open_files: Mapping[Path, bytes]) -> bytes:
        """As for `Analysis`."""
        fixed: bytes = self._ask("fixed", path, dict(open_files))
        return fixed

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()

    def _ask(self, name: str, *arguments: object) -> Any:
        if self._process is None:
            self._process = _start()
            self._ask("use", self._folders)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((name, arguments), self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            worked, result = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self._process.wait()
            self._process = None
            how = signal.Signals(-code).name if code < 0 else f"code {code}"
            raise JaxresidError(f"the linter's process ended ({how}); is there memory?") from None
        if not worked:
            raise result
        return result


def _start() -> subprocess.Popen[bytes]:
    # As for the processes of compilers: packages that only a changed sys.path finds are found there
    # too, and a Ctrl-C in a terminal is the server's.
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    paths = f"import sys; sys.path += [p for p in {sys.path!r} if p not in sys.path]"
    command = [sys.executable, "-P", "-c", f"{deaf}; {paths}; {_SERVE}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def serve() -> None:
    """Answer in the other process, until nobody asks any more."""
    from jaxresid.server.analysis import Analysis

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between answers
    analysis = Analysis(())
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: tuple[bool, object]
        try:
            if name == "use":
                analysis, answer = Analysis(*arguments), (True, None)
            else:
                answer = True, getattr(analysis, name)(*arguments)
        except JaxresidError as error:
            answer = False, error
        except Exception as error:  # the server reports it
            traceback.print_exception(error)
            answer = False, error
        pickle.dump(answer, answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
