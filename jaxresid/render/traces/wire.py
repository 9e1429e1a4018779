"""Write protocol buffers: what the messages of two viewers take, without their generated code."""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _DATA = 0, 2


def integer(number: int, value: int) -> bytes:
    """Return a field that is an integer of 64 bits at most, a bool or an enum."""
    return _varint(number << 3 | _VARINT) + _varint(value)


def data(number: int, value: bytes | str) -> bytes:
    """Return a field that is text, bytes or a message."""
    payload = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _DATA) + _varint(len(payload)) + payload


def packed(number: int, values: Iterable[int]) -> bytes:
    """Return a field that is a list of integers."""
    return data(number, b"".join(map(_varint, values)))


def _varint(value: int) -> bytes:
    left = value & 0xFFFF_FFFF_FFFF_FFFF  # negative ones as their two's complement
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)
