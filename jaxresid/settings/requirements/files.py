"""Read the files of a project that tell which jax it uses."""

from __future__ import annotations

from pathlib import Path

from jaxresid import regular_files
from jaxresid.settings.toml_values import ConfigFileError
from jaxresid.text.wide_encodings import wide_encoding

# Locks of big projects have a few MB.
_MOST_NBYTES = 32 << 20


def read(path: Path) -> str:
    """Return the text of a file; '' for one that is not there or may not be read.

    Raises:
      ConfigFileError: It is a pipe, a device or the like, or too big.
    """
    try:
        data = regular_files.read_limited(path, _MOST_NBYTES)
    except regular_files.UnusableFileError as e:
        reason = f"cannot be read: {e.strerror} (`target-jax` of [tool.jaxresid] makes it unneeded)"
        raise ConfigFileError(path, reason) from None
    except (OSError, ValueError):  # ValueError: a name with a null character
        return ""
    return data.decode(wide_encoding(data) or "utf-8-sig", "replace")
