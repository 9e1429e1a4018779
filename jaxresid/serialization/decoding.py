"""Decode JSON into frozen values, checking that each field has its declared type.

The JSON may have been written by others, as an entry of a cache or a saved result may be: it is
either a valid value of the type or rejected. Nothing in it is imported or run.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_Reader = Callable[[Any], Any]
_SHOWN = 40  # characters of a wrong value in a message
# More than any machine has of bytes or does of FLOPs; what is below fits into a float, with room.
_TOO_LARGE = 1 << 96
_WORDS = {
    int: "an integer below 2^96",
    float: "a number below 2^96",
    str: "text",
    bool: "true or false",
}


class DecodeError(ValueError):
    """The error of JSON that is no value of a type.

    Attributes:
      reason: what is wrong there: `is "x", not an integer`.
      path: where: `residuals[3].trips`; '' for the whole.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        self.reason, self.path = reason, path
        super().__init__(f"{path or 'it'} {reason}")

    def inside(self, part: str) -> DecodeError:
        """Return the error as seen from the value that holds the wrong one under `part`."""
        dot = "" if not self.path or self.path.startswith("[") else "."
        return DecodeError(self.reason, f"{part}{dot}{self.path}")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the JSON object of a dataclass differs from one key for each field.

    Attributes:
      renamed: the keys of fields that are called otherwise in JSON.
      spread: the fields that are dataclasses and whose keys stand among those of the object; all
        of them are null where such a field is None.
      objects: the fields of pairs of a name and a value, which are an object in JSON.
      from_one: the fields that count from 0, and from 1 in JSON.
      blank: the fields of text that are null in JSON where they are ''.
      below: the key of the object that the fields are in; '' where they are in the object itself.
      shared: keys of lists of objects that stand once in such a list of this object, each with the
        keys below this object that hold the number in it instead, or a list of numbers.
      derived: further keys, each with the function of the value that gives what they hold; they
        are not read.
      wrong: the function that says of a value what is wrong in how its fields go together, such as
        `curve_at is 7, not the number of one of curve`; '' where nothing is. None where any go.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    spread: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    from_one: tuple[str, ...] = ()
    blank: tuple[str, ...] = ()
    below: str = ""
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    derived: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    wrong: Callable[[Any], str] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """How values are written in JSON.

    Attributes:
      is_strict: whether an object has exactly the keys of its dataclass. Otherwise unknown keys,
        which a later version may have added, are left out, and what an earlier one did not write
        has its default.
    """

    layouts: Mapping[type, Layout] = field(default_factory=dict)
    is_strict: bool = True


PLAIN = Format()
_AS_FIELDS = Layout()


def decoded(kind: Any, value: Any, form: Format = PLAIN) -> Any:
    """Return a JSON value as a value of a type, or raise if it does not fit.

    Raises:
      DecodeError: The JSON is not a value of this type.
    """
    return _reader(kind, form)(value)


def layout_of(kind: type, form: Format) -> Layout:
    """Return how the JSON object of a dataclass looks."""
    return form.layouts.get(kind, _AS_FIELDS)


def keys_of(kind: Any, form: Format) -> tuple[str, ...]:
    """Return the keys that the fields of a dataclass have in JSON, those of spread ones as well."""
    return tuple(key for member in fields(kind) for key in keys_of_field(kind, member.name, form))


def keys_of_field(kind: Any, name: str, form: Format) -> tuple[str, ...]:
    """Return the key that a field of a dataclass has in JSON; of a spread one all its keys."""
    layout = layout_of(kind, form)
    if name in layout.spread:
        return keys_of(_without_none(_hints(kind)[name])[0], form)
    return (layout.renamed.get(name, name),)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


@functools.cache
def _reader(kind: Any, form: Format) -> _Reader:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda value: value
    if dataclasses.is_dataclass(kind):
        return _object_reader(kind, form)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(kind, form)
    if origin is typing.Literal:
        return _checked(lambda v: isinstance(v, str) and v in arguments, _one_of(arguments))
    if origin is tuple:
        return _tuple_reader(arguments, form)
    if origin is Mapping:
        return _mapping_reader(arguments[0], arguments[1], form)
    if kind in (None, type(None)):
        return _checked(lambda value: value is None, "null")
    if kind in (int, float):
        number = {int, kind}  # no nan is less
        return _checked(lambda v: type(v) in number and abs(v) < _TOO_LARGE, _WORDS[kind])
    if issubclass(kind, enum.Enum):
        values = [member.value for member in kind]
        checked = _checked(lambda value: value in values, _one_of(values))
        return lambda value: kind(checked(value))
    return _checked(lambda value: type(value) is kind, _WORDS.get(kind, kind.__name__))


def _checked(fits: Callable[[Any], bool], wanted: str) -> _Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise _wrong(value, wanted)
        return value

    return read


def _wrong(value: Any, wanted: str) -> DecodeError:
    shown = json.dumps(value, default=repr)
    if len(shown) > _SHOWN:
        shown = f"{shown[: _SHOWN - 1]}…"
    return DecodeError(f"is {shown}, not {wanted}")


def _one_of(values: typing.Iterable[Any]) -> str:
    return "one of " + ", ".join(json.dumps(value) for value in values)


def _without_none(kind: Any) -> list[Any]:
    """Return the types that a value of a union can have, without None; of others the type."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return [kind]
    return [member for member in typing.get_args(kind) if member is not type(None)]


def _union_reader(kind: Any, form: Format) -> _Reader:
    kinds = _without_none(kind)
    can_be_none = len(kinds) < len(typing.get_args(kind))
    readers = [_reader(member, form) for member in kinds]
    by_kind = {
        word: reader
        for member, reader in zip(kinds, readers, strict=True)
        if isinstance(member, type) and dataclasses.is_dataclass(member)
        for word in typing.get_args(_hints(member).get("kind"))
    }

    def read(value: Any) -> Any:
        if value is None and can_be_none:
            return None
        if len(readers) == 1:
            return readers[0](value)
        if by_kind and isinstance(value, dict):
            word = value.get("kind")
            if not isinstance(word, str) or word not in by_kind:
                raise _wrong(word, _one_of(by_kind)).inside("kind")
            return by_kind[word](value)
        for reader in readers:
            try:
                return reader(value)
            except DecodeError as error:
                last = error
        raise last

    return read


def _tuple_reader(arguments: tuple[Any, ...], form: Format) -> _Reader:
    is_open = arguments[-1:] == (Ellipsis,)
    readers = [_reader(member, form) for member in arguments if member is not Ellipsis]

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _wrong(value, "a list")
        if not is_open and len(value) != len(readers):
            raise _wrong(value, f"a list of {len(readers)}")
        items = []
        for i, item in enumerate(value):
            try:
                items.append(readers[0 if is_open else i](item))
            except DecodeError as error:
                raise error.inside(f"[{i}]") from None
        return tuple(items)

    return read


def _mapping_reader(keys: Any, values: Any, form: Format) -> _Reader:
    read_key, read_value = _reader(keys, form), _reader(values, form)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        items = {}
        for key, item in value.items():
            try:
                items[read_key(key)] = read_value(item)
            except DecodeError as error:
                raise error.inside(json.dumps(key)[1:-1]) from None
        return items

    return read


def _pairs_reader(kind: Any, form: Format) -> _Reader:
    names, values = typing.get_args(typing.get_args(kind)[0])
    as_mapping = _mapping_reader(names, values, form)
    return lambda value: tuple(as_mapping(value).items())


def _from_one_reader(read_number: _Reader) -> _Reader:
    def shifted(value: Any) -> Any:
        number = read_number(value)
        if number is not None and number < 1:
            raise _wrong(value, "a number from 1")
        return None if number is None else number - 1

    return shifted


def _object_reader(kind: Any, form: Format) -> _Reader:
    layout = layout_of(kind, form)
    # Each at its first use, as a class may hold itself.
    takers = functools.cache(
        lambda: {member.name: _taker(kind, member, form) for member in fields(kind)}
    )
    keys = functools.cache(lambda: {*keys_of(kind, form), *layout.derived, *layout.shared})

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        if form.is_strict and value.keys() != keys():
            raise DecodeError(f"has other keys than a {kind.__name__}")
        for key, holders in layout.shared.items():
            value = _unshared(value, key, holders)
        decoded_value = kind(**{name: take(value) for name, take in takers().items()})
        if layout.wrong is not None and (reason := layout.wrong(decoded_value)):
            raise DecodeError(f"has parts that do not go together: {reason}")
        return decoded_value

    def read_below(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        try:
            return read(value.get(layout.below))
        except DecodeError as error:
            raise error.inside(layout.below) from None

    return read_below if layout.below else read


def _unshared(value: dict[str, Any], key: str, holders: tuple[str, ...]) -> dict[str, Any]:
    """Return an object with the objects of its list under `key` where their numbers are."""
    objects = value.get(key)
    if not isinstance(objects, list):
        raise _wrong(objects, "a list").inside(key)

    def of_number(number: Any) -> Any:
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(objects):
            raise _wrong(number, f"null or the number of one of {key}")
        return objects[number]

    def whole(item: Any) -> Any:
        if isinstance(item, list):
            return [whole(objects) for objects in item]
        if not isinstance(item, dict):
            return item
        return {k: held(k, v) if k in holders else whole(v) for k, v in item.items()}

    def held(name: str, item: Any) -> Any:
        try:
            return [of_number(n) for n in item] if isinstance(item, list) else of_number(item)
        except DecodeError as error:
            raise error.inside(name) from None

    return {name: whole(item) for name, item in value.items() if name != key}


def _taker(kind: Any, member: dataclasses.Field[Any], form: Format) -> _Reader:
    layout, hint = layout_of(kind, form), _hints(kind)[member.name]
    if member.name in layout.spread:
        return _spread_taker(hint, form)
    key, read_item = layout.renamed.get(member.name, member.name), _reader(hint, form)
    if member.name in layout.objects:
        read_item = _pairs_reader(hint, form)
    elif member.name in layout.from_one:
        read_item = _from_one_reader(read_item)
    is_blank = member.name in layout.blank

    def take(value: dict[str, Any]) -> Any:
        if key not in value:
            return _default(member, key)
        item = value[key]
        if is_blank and item is None:
            return ""
        try:
            return read_item(item)
        except DecodeError as error:
            raise error.inside(key) from None

    return take


def _spread_taker(hint: Any, form: Format) -> _Reader:
    (kind,) = _without_none(hint)
    can_be_none, read_object = kind is not hint, _reader(kind, form)
    keys = functools.cache(lambda: keys_of(kind, form))

    def take(value: dict[str, Any]) -> Any:
        if can_be_none and all(value.get(key) is None for key in keys()):
            return None
        return read_object(value)

    return take


def _default(member: dataclasses.Field[Any], key: str) -> Any:
    if member.default is not dataclasses.MISSING:
        return member.default
    if member.default_factory is not dataclasses.MISSING:
        return member.default_factory()
    raise DecodeError(f"has no {json.dumps(key)}")
