"""Read the messages of a client, as far as they are of the protocol."""

from __future__ import annotations

import re
from typing import BinaryIO

from jaxresid.base.errors import JaxresidError
from jaxresid.base.standard_streams import Output

# A notebook with its outputs takes some MB.
_LONGEST_MESSAGE = 1 << 28
_LONGEST_HEADER = 1 << 13
_LENGTH = re.compile(rb"content-length:(.*)", re.IGNORECASE | re.DOTALL)
_SHOWN = 40


class Input:
    """The messages of a client: their headers line by line, and what these announce.

    pygls waits for as many bytes as a header names, and skips what it does not understand.

    Args:
      stream: what they are read from.
      answers: where the answers go; once these cannot be written, no more messages are read.
    """

    def __init__(self, stream: BinaryIO, answers: Output) -> None:
        self._stream = stream
        self._answers = answers
        self._has_length = False

    def readline(self) -> bytes:
        """Return the next line of the headers, the last of which is empty; b"" at the end.

        Raises:
          JaxresidError: It is no header, or names no length that a message can have.
        """
        if self._answers.error is not None:  # which pygls has caught
            raise self._answers.error
        if self._answers.is_lost:
            return b""
        line = self._stream.readline(_LONGEST_HEADER)
        if match := _LENGTH.match(line):
            self._has_length = True
            return b"Content-Length: %d\r\n" % _length(match[1].strip())
        if line and not line.strip() and not self._has_length:
            raise JaxresidError("standard input has a message without the header Content-Length")
        if line.strip() and b":" not in line:
            raise JaxresidError(
                f"standard input is not the Language Server Protocol: {_shown(line)} is no header;"
                " editors start `jaxresid server`"
            )
        return line

    def read(self, size: int) -> bytes:
        """Return what follows the headers."""
        self._has_length = False
        return self._stream.read(size)


def _length(written: bytes) -> int:
    if not re.fullmatch(rb"\d+", written):
        raise JaxresidError(f"standard input has a Content-Length of {_shown(written)}")
    digits = written.lstrip(b"0")
    if not digits or len(digits) > 18 or int(digits) > _LONGEST_MESSAGE:
        raise JaxresidError(
            f"standard input has a Content-Length of {_shown(written)}; messages have from 1 to"
            f" {_LONGEST_MESSAGE} bytes"
        )
    return int(digits)


def _shown(data: bytes) -> str:
    text = data.strip().decode("utf-8", "replace")
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
