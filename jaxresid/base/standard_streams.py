"""Standard input, output and error, whatever they are: full, closed, or read by nobody any more."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING

from jaxresid.base.errors import JaxresidError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


class StreamError(JaxresidError):
    """The error of standard input that cannot be read, or of output that cannot be written."""


def prepare() -> None:
    """Put streams that never raise an OSError in the place of those that Python has opened.

    What is written to output that is full or closed raises a StreamError, once, and what is read
    from input that is closed raises one as well. What nobody reads any more is dropped, as are
    messages that cannot be written. A descriptor that is closed is opened on the null device, so
    that no other file takes its number: reading such input and writing such output still fails.
    """
    for descriptor, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        _open_if_closed(descriptor, flags)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(_Input(0)), *_encoding(sys.stdin))
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(Output(1)),
        *_encoding(sys.stdout),
        line_buffering=getattr(sys.stdout, "line_buffering", False),
        write_through=getattr(sys.stdout, "write_through", False),
    )
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(_Messages(2)),
        getattr(sys.stderr, "encoding", None),
        "backslashreplace",
        line_buffering=True,
    )


def _open_if_closed(descriptor: int, flags: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, flags)
        if opened == descriptor:
            os.set_inheritable(descriptor, True)
        else:
            os.dup2(opened, descriptor)
            os.close(opened)


def _encoding(stream: object) -> tuple[str | None, str | None]:
    return getattr(stream, "encoding", None), getattr(stream, "errors", None)


class _Input(io.FileIO):
    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb", closefd=False)

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as e:
            raise StreamError(f"cannot read standard input: {_reason(e)}") from e

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as e:
            raise StreamError(f"cannot read standard input: {_reason(e)}") from e


class Output(io.FileIO):
    """Bytes that are written to an open descriptor as long as that takes them; the rest is dropped.

    Attributes:
      is_lost: whether it took no more.
      error: why, if somebody still reads.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.is_lost = False
        self.error: StreamError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes.

        Raises:
          StreamError: They cannot be written, though somebody still reads.
        """
        if not self.is_lost:
            try:
                return super().write(data)
            except OSError as e:
                self.is_lost = True  # Python writes what is left once more as it ends
                self._lose(e)
        return memoryview(data).nbytes

    def _lose(self, error: OSError) -> None:
        if error.errno != errno.EPIPE:
            self.error = StreamError(f"cannot write to standard output: {_reason(error)}")
            raise self.error from error


class _Messages(Output):
    def _lose(self, error: OSError) -> None:
        pass


def _reason(error: OSError) -> str:
    return "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
