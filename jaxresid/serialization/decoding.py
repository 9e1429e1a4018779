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
      layouts: the layouts of those dataclasses that have one.
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

    Args:
      kind: a dataclass, an enum, a tuple, a mapping, a union, a Literal, or a plain type.
      value: what `json` has parsed.
      form: how values are written.

    Raises:
      DecodeError: The JSON is not a value of this type.
    """
    return _reader(kind, form)(value)


def layout_of(kind: type, form: Format) -> Layout:
    """Return how the JSON object of a dataclass looks."""
    return form.layouts.get(kind, _AS_FIELDS)


def keys_of(kind: Any, form: Format) -> tuple[str, ...]:
    """Return the keys that the fields of a dataclass have in JSON, those of spread ones as well."""
    return tuple(key for each in fields(kind) for key in keys_of_field(kind, each.name, form))


def keys_of_field(kind: Any, name: str, form: Format) -> tuple[str, ...]:
    """Return the key that a field of a dataclass has in JSON; of a spread one all its keys."""
    layout = layout_of(kind, form)
    if name in layout.spread:
        return keys_of(_without_none(_hints(kind)[name])[0], form)
    return (layout.renamed.get(name, name),)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, resolved."""
    return typing.get_type_hints(kind)


@functools.cache
def _reader(kind: Any, form: Format) -> _Reader:
    """Return the function that reads values of a type."""
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
    if kind is float:
        return _checked(_is_number, _WORDS[float])
    if kind is int:
        return _checked(_is_integer, _WORDS[int])
    if issubclass(kind, enum.Enum):
        values = [member.value for member in kind]
        known = _checked(lambda value: value in values, _one_of(values))
        return lambda value: kind(known(value))
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


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < _TOO_LARGE


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _TOO_LARGE  # no nan is less


def _without_none(kind: Any) -> list[Any]:
    """Return the types that a value of a union can have, without None; of others the type."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return [kind]
    return [each for each in typing.get_args(kind) if each is not type(None)]


def _union_reader(kind: Any, form: Format) -> _Reader:
    kinds = _without_none(kind)
    can_be_none = len(kinds) < len(typing.get_args(kind))
    readers = [_reader(each, form) for each in kinds]
    by_kind = {
        word: reader
        for each, reader in zip(kinds, readers, strict=True)
        if isinstance(each, type) and dataclasses.is_dataclass(each)
        for word in typing.get_args(_hints(each).get("kind"))
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
    readers = [_reader(each, form) for each in arguments if each is not Ellipsis]

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _wrong(value, "a list")
        if not is_open and len(value) != len(readers):
            raise _wrong(value, f"a list of {len(readers)}")
        found = []
        for i, item in enumerate(value):
            try:
                found.append(readers[0 if is_open else i](item))
            except DecodeError as error:
                raise error.inside(f"[{i}]") from None
        return tuple(found)

    return read


def _mapping_reader(keys: Any, values: Any, form: Format) -> _Reader:
    read_key, read_value = _reader(keys, form), _reader(values, form)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        found = {}
        for key, item in value.items():
            try:
                found[read_key(key)] = read_value(item)
            except DecodeError as error:
                raise error.inside(json.dumps(key)[1:-1]) from None
        return found

    return read


def _pairs_reader(kind: Any, form: Format) -> _Reader:
    """Return the function that reads an object as pairs, given the type of these pairs."""
    names, values = typing.get_args(typing.get_args(kind)[0])
    as_mapping = _mapping_reader(names, values, form)
    return lambda value: tuple(as_mapping(value).items())


def _from_one_reader(read: _Reader) -> _Reader:
    def shifted(value: Any) -> Any:
        found = read(value)
        if found is not None and found < 1:
            raise _wrong(value, "a number from 1")
        return None if found is None else found - 1

    return shifted


def _object_reader(kind: Any, form: Format) -> _Reader:
    """Return the function that reads the object of a dataclass."""
    layout = layout_of(kind, form)
    # Each at its first use, as a class may hold itself.
    takers = functools.cache(lambda: {each.name: _taker(kind, each, form) for each in fields(kind)})
    keys = functools.cache(lambda: {*keys_of(kind, form), *layout.derived, *layout.shared})

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        if form.is_strict and value.keys() != keys():
            raise DecodeError(f"has other keys than a {kind.__name__}")
        for key, holders in layout.shared.items():
            value = _unshared(value, key, holders)
        found = kind(**{name: take(value) for name, take in takers().items()})
        if layout.wrong is not None and (reason := layout.wrong(found)):
            raise DecodeError(f"has parts that do not go together: {reason}")
        return found

    if not layout.below:
        return read

    def read_below(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        try:
            return read(value.get(layout.below))
        except DecodeError as error:
            raise error.inside(layout.below) from None

    return read_below


def _unshared(value: dict[str, Any], key: str, holders: tuple[str, ...]) -> dict[str, Any]:
    """Return an object with the objects of its list under `key` where their numbers are."""
    each = value.get(key)
    if not isinstance(each, list):
        raise _wrong(each, "a list").inside(key)

    def of_number(number: Any) -> Any:
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(each):
            raise _wrong(number, f"null or the number of one of {key}")
        return each[number]

    def whole(item: Any) -> Any:
        if isinstance(item, list):
            return [whole(each) for each in item]
        if not isinstance(item, dict):
            return item
        return {k: held(k, v) if k in holders else whole(v) for k, v in item.items()}

    def held(name: str, item: Any) -> Any:
        try:
            return [of_number(n) for n in item] if isinstance(item, list) else of_number(item)
        except DecodeError as error:
            raise error.inside(name) from None

    return {name: whole(item) for name, item in value.items() if name != key}


def _taker(kind: Any, each: dataclasses.Field[Any], form: Format) -> _Reader:
    """Return the function that takes the value of a field out of the object of its dataclass."""
    layout, hint = layout_of(kind, form), _hints(kind)[each.name]
    if each.name in layout.spread:
        return _spread_taker(hint, form)
    key, read = layout.renamed.get(each.name, each.name), _reader(hint, form)
    if each.name in layout.objects:
        read = _pairs_reader(hint, form)
    elif each.name in layout.from_one:
        read = _from_one_reader(read)
    is_blank = each.name in layout.blank

    def take(value: dict[str, Any]) -> Any:
        if key not in value:
            return _default(each, key)
        item = value[key]
        if is_blank and item is None:
            return ""
        try:
            return read(item)
        except DecodeError as error:
            raise error.inside(key) from None

    return take


def _spread_taker(hint: Any, form: Format) -> _Reader:
    (kind,) = _without_none(hint)
    can_be_none, read = kind is not hint, _reader(kind, form)
    keys = functools.cache(lambda: keys_of(kind, form))

    def take(value: dict[str, Any]) -> Any:
        if can_be_none and all(value.get(key) is None for key in keys()):
            return None
        return read(value)

    return take


def _default(each: dataclasses.Field[Any], key: str) -> Any:
    if each.default is not dataclasses.MISSING:
        return each.default
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    raise DecodeError(f"has no {json.dumps(key)}")
