"""Write files, all of it or nothing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from jaxresid.base.errors import JaxresidError


def write_text(output: str, text: str) -> None:
    """Write text to a file, replacing what was in it: all of it or nothing.

    What is no regular file, such as a pipe, is written to.

    Raises:
      JaxresidError: The file cannot be written.
    """
    write_bytes(output, text.encode())


def write_bytes(output: str, data: bytes) -> None:
    """Write bytes to a file, as `write_text` does.

    Raises:
      JaxresidError: The file cannot be written.
    """
    try:
        # Through links: what is replaced is the file, not the name that leads to it.
        path = Path(os.path.realpath(output))
        if is_device(output) or (path.exists() and not path.is_file()):
            with open(output, "wb") as file:
                file.write(data)
            return
        import tempfile  # 5 ms that only a file is worth

        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(handle, "wb") as file:
                file.write(data)
            mode = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
            os.chmod(name, mode)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as e:
        raise JaxresidError(f"cannot write {output}: {e.strerror or e}") from e


def is_device(output: str) -> bool:
    """Return whether a name stands for an open file, as /dev/stdout does.

    That is so even where it is a regular file: replacing the name would break the machine for
    everybody.
    """
    return os.path.abspath(output).startswith(("/dev/", "/proc/"))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
