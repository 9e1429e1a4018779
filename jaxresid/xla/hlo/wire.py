"""Read protocol buffers without their descriptors: jaxlib ships none for XLA's messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Message:
    """The fields of a message by number, each in the order that it was written in."""

    fields: dict[int, list[int | bytes]]

    @classmethod
    def read(cls, data: bytes) -> Self:
        fields: dict[int, list[int | bytes]] = {}
        for number, value in _values(data):
            fields.setdefault(number, []).append(value)
        return cls(fields)

    def integer(self, number: int) -> int:
        """Return the last value of an integer field, 0 where it is absent; signed."""
        value = self.fields.get(number, [0])[-1]
        if isinstance(value, bytes):
            raise ValueError(f"field {number} is not an integer")
        return value - (1 << 64) if value >> 63 else value

    def integers(self, number: int) -> tuple[int, ...]:
        """Return the values of a repeated integer field, packed or not."""
        values: list[int] = []
        for value in self.fields.get(number, ()):
            values += _packed(value) if isinstance(value, bytes) else (value,)
        return tuple(values)

    def data(self, number: int) -> bytes:
        """Return the last value of a field of bytes, empty where it is absent."""
        value = self.fields.get(number, [b""])[-1]
        if isinstance(value, int):
            raise ValueError(f"field {number} is an integer")
        return value

    def text(self, number: int) -> str:
        """Return the last value of a text field, '' where it is absent."""
        return self.data(number).decode("utf-8", "replace")

    def message(self, number: int) -> Message:
        return Message.read(self.data(number))

    def messages(self, number: int) -> Iterator[Message]:
        for value in self.fields.get(number, ()):
            if isinstance(value, int):
                raise ValueError(f"field {number} is an integer")
            yield Message.read(value)


def _values(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"no such wire type: {kind}")
        if at + size > end:
            raise ValueError("the message ends inside a field")
        yield number, data[at : at + size]
        at += size


def _packed(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("the message ends inside a number")
