"""Define what is asked about a function, as one value, and the two calls that users ask it with."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, get_args

from jaxresid.base.errors import InputsError
from jaxresid.base.option_types import Mode
from jaxresid.base.text.nearest import did_you_mean
from jaxresid.targets.inputs import Inputs
from jaxresid.xla.chosen import choose
from jaxresid.xla.places import Place

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A function, a call of it, and how to look at it.

    Attributes:
      fun: a function that JAX can differentiate, or a training step.
      args, kwargs: its arguments.
      argnums: positional arguments to differentiate, a tuple here; None: all that can be.
      has_aux: `fun` returns `(output, auxiliary data)`.
      mode: whether `fun` is a loss, to be differentiated, or a program, to be taken as it is.
      on: the place that the answer is for, a Place here unless it is None: then it is the
        accelerator that JAX sees, else `gpu:h100`.
      mesh: the mesh that it is split over, as a user gives it.
      name: the target as the user wrote it; None: the function's own name.
      warnings: warnings that there are already.
      words: the words of the command line that ask this; empty from Python.
      lifetimes: whether the report is to have the lifetimes of all values.
      trips: the trips of while loops whose number the program decides; None: not said.

    Raises:
      InputsError: an option is not one, or does not go with another.
    """

    fun: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    argnums: int | Sequence[int] | None = None
    has_aux: bool = False
    mode: Mode = "auto"
    on: str | Place | None = None
    mesh: Any = None
    name: str | None = None
    warnings: Sequence[str] = ()
    words: tuple[str, ...] = ()
    lifetimes: bool = False
    trips: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.fun):
            raise InputsError(
                f"the target must be a function, not a value of type {_type_name(self.fun)}"
            )
        _check_word("mode", self.mode, get_args(Mode))
        if self.on is not None:
            object.__setattr__(self, "on", choose(self.on))
        object.__setattr__(self, "argnums", _normalised(self.argnums))
        if self.trips is not None and (not isinstance(self.trips, int) or self.trips < 1):
            raise InputsError(f"trips must be a whole number of at least 1, not {self.trips!r}")
        if self.mode == "program" and (self.has_aux or self.argnums is not None):
            given = "has_aux" if self.has_aux else "argnums"
            raise InputsError(
                f"a program is taken as it is, not differentiated: {given} is for mode loss only"
            )

    @property
    def is_loss(self) -> bool:
        """Whether the options say that `fun` is to be differentiated."""
        return self.mode == "loss" or self.has_aux or self.argnums is not None

    @property
    def called(self) -> str:
        """The name of the function in a report."""
        return self.name or name_of(self.fun)

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Question:
        """Return the question about another call."""
        return replace(self, args=args, kwargs=kwargs)

    def of_made(self, inputs: Any, kwargs: Mapping[str, Any]) -> Question:
        """Return the question about arguments that a function made.

        Args:
          inputs: what that function returned.
          kwargs: the keyword arguments that are the same however they are made.

        Raises:
          InputsError: it made something else, or an argument is given twice.
        """
        if not isinstance(inputs, tuple | list | Inputs):
            raise InputsError(
                "the function that makes the inputs must return the positional arguments as a tuple"
                f" or list, or jaxresid.Inputs, not a value of type {type(inputs).__name__}"
            )
        args, own = (inputs.args, inputs.kwargs) if isinstance(inputs, Inputs) else (inputs, {})
        if twice := [name for name in own if name in kwargs]:
            raise InputsError(
                f"{twice[0]} is given twice, by the function that makes the inputs and in the call;"
                " give it once"
            )
        return self.of(args, {**own, **kwargs})

    def positions(self, names: Sequence[str]) -> frozenset[int] | None:
        """Return the positional arguments to differentiate, counted from the first; None: all.

        Args:
          names: the names of the positional arguments.

        Raises:
          InputsError: the call has no such argument.
        """
        if self.argnums is None:
            return None
        assert isinstance(self.argnums, tuple)
        count = len(self.args)
        for n in self.argnums:
            if not -count <= n < count:
                listed = ", ".join(f"{i} {name}" for i, name in enumerate(names[:count]))
                raise InputsError(
                    f"argnums {n} is out of range: the call has {count} positional"
                    f" argument{'s' * (count != 1)}" + (f" ({listed})" if listed else "")
                )
        return frozenset(n % count for n in self.argnums)


def in_two_calls(function: Callable[P, Callable[..., R]]) -> Callable[P, Callable[..., R]]:
    """Make a public function of two calls: the first takes `fun` and options, the second arguments.

    What the first call returns is named and shown as JAX's transformations are, with the signature
    of `fun`; and what belongs in the second call is refused in the first, in one line.
    """
    name = f"jaxresid.{function.__name__}"
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def first(*args: P.args, **options: P.kwargs) -> Callable[..., R]:
        foreign = [option for option in options if option not in known]
        if len(args) > 1 or (foreign and not (near := did_you_mean(foreign[0], known))):
            kept = ["fun", *(f"{option}=..." for option in options if option in known)]
            raise InputsError(
                f"{name} takes a function and options; pass the function's arguments in a second"
                f" call: {name}({', '.join(kept)})(*args, **kwargs)"
            )
        if foreign:
            raise InputsError(
                f"{name} has no option {foreign[0]!r}{near}; pass the function's arguments in a"
                f" second call: {name}(fun)(*args, **kwargs)"
            )
        second = function(*args, **options)
        return _named_after(second, function.__name__, args[0] if args else options["fun"])

    return first


def _named_after(second: Callable[..., R], by: str, fun: Any) -> Callable[..., R]:
    """Return the callable, named after the function that it is about and with its signature."""
    name = name_of(fun)
    second.__module__ = "jaxresid"
    second.__name__ = f"{by}({name.rpartition('.')[2]})"
    second.__qualname__ = f"{by}({name})"
    second.__doc__ = f"Return the result of `jaxresid.{by}` for `{name}` with these arguments."
    try:
        signature = inspect.signature(fun)
    except Exception:  # a callable's own __getattr__ or __signature__ may raise anything
        return second
    said = second.__annotations__.get("return", signature.empty)
    second.__signature__ = signature.replace(return_annotation=said)  # type: ignore[attr-defined]
    return second


def name_of(fun: Any) -> str:
    """Return what a function is called where the user gave it no name."""
    try:
        owner = getattr(fun, "__self__", None)
        if owner is not None and not isinstance(owner, type | ModuleType):
            return f"{type(owner).__name__}.{fun.__name__}"
        name = getattr(fun, "__qualname__", None)
    except Exception:  # a callable's own __getattr__ may raise anything
        name = None
    return name if isinstance(name, str) and name else type(fun).__name__


def size_name(makes: Callable[..., Any]) -> str:
    """Return what the size is of that a function makes the arguments for."""
    try:
        first = next(iter(inspect.signature(makes).parameters), "batch")
    except Exception:  # a callable's own attributes may raise anything
        return "batch"
    return "batch" if first == "batch_size" else first


def _check_word(option: str, given: Any, known: Sequence[str]) -> None:
    if given not in known:
        near = did_you_mean(given, known) if isinstance(given, str) else ""
        raise InputsError(f"{option} must be one of {', '.join(known)}, not {given!r}{near}")


def _normalised(argnums: Any) -> tuple[int, ...] | None:
    """Return positions as Python's integers; numpy's will do."""
    if argnums is None:
        return None
    several = isinstance(argnums, Iterable) and not isinstance(argnums, str | bytes)
    try:
        each = tuple(argnums) if several else (argnums,)
    except TypeError:  # an array without dimensions is iterable by its type alone
        each = (argnums,)
    try:
        if any(isinstance(n, bool) for n in each):
            raise TypeError
        found = tuple(map(operator.index, each))
    except TypeError:
        raise InputsError(
            f"argnums must be one position or several, such as 0 or (0, 2), not {argnums!r:.60}"
        ) from None
    if not found:
        raise InputsError(
            "argnums selects no arguments; leave it out to differentiate all, or write e.g. 0"
        )
    return found


def _type_name(value: Any) -> str:
    return type(value).__name__
