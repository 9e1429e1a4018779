"""What characters a stream takes."""

from __future__ import annotations


def can_encode(text: str, encoding: str) -> bool:
    """Return whether a stream of an encoding takes a text as it is."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
