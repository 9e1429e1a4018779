"""Evaluate what a target or an option writes as Python: `Decoder(512, dtype=jnp.bfloat16)`."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jaxresid.base.errors import NOT_CAUGHT, TargetError, summary
from jaxresid.targets.targets import attribute_of

# Modules that an expression may name wherever it is evaluated.
_KNOWN = {"jax": "jax", "jnp": "jax.numpy"}
_NONE: Mapping[str, Any] = {}
# What is called, and the arguments that are not in the expression, in the names of its call.
_CALLED, _MORE = "__called__", "__more__"


@dataclass(frozen=True, slots=True)
class Expression:
    """What makes a value: a name of a module, or a call of one.

    Attributes:
      text: the expression.
      module: the module that its names are looked up in.
      value: what is called, or the value itself where the expression is no call.
      call: the call, whose arguments are not evaluated yet; None where the expression is none.
    """

    text: str
    module: ModuleType
    value: Any
    call: ast.Call | None

    def takes(self, name: str) -> bool:
        """Return whether what is called has a parameter, by name, that the call leaves out."""
        if self.call is not None and any(each.arg == name for each in self.call.keywords):
            return False
        is_class = isinstance(self.value, type)
        # The metaclass of a framework's models may take anything.
        fun = self.value.__init__ if is_class else self.value
        try:
            parameters = inspect.signature(fun).parameters
        except Exception:  # TypeError, ValueError, or what the attributes of an object raise
            return False
        if name not in parameters:
            return False
        given = is_class + (0 if self.call is None else len(self.call.args))
        is_keyword = parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        return is_keyword or list(parameters).index(name) >= given

    def made(self, **more: Any) -> Any:
        """Return what the expression makes: its value, called with arguments of its own and more.

        Raises:
          TargetError: The call raises.
        """
        args, keywords = (self.call.args, self.call.keywords) if self.call else ([], [])
        others = ast.keyword(None, ast.Name(_MORE, ast.Load()))
        named = ast.Call(ast.Name(_CALLED, ast.Load()), args, [*keywords, others])
        try:
            return _evaluated(named, self.module, {_CALLED: self.value, _MORE: more})
        except (*NOT_CAUGHT, TargetError):
            raise
        except BaseException as e:
            raise TargetError(f"{self.text} fails: {summary(e)}") from e


def expression_of(text: str, module: ModuleType, place: str) -> Expression:
    """Return an expression whose names are those of a module.

    The arguments of a call are evaluated when the value is made, each time anew.

    Raises:
      TargetError: It is not Python, or a name is not there.
    """
    try:
        body = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as e:
        what = e.msg if isinstance(e, SyntaxError) else str(e)
        raise TargetError(
            f"{text!r} is not Python ({what}); write a name or a call, such as Decoder(512)"
        ) from None
    call = body if isinstance(body, ast.Call) else None
    called = body if call is None else call.func
    if dotted := _dotted(called):
        return Expression(text, module, attribute_of(module, dotted, place), call)
    try:
        return Expression(text, module, _evaluated(called, module), call)
    except NOT_CAUGHT:
        raise
    except BaseException as e:
        raise TargetError(f"{text} fails: {summary(e)}") from e


def _dotted(node: ast.expr) -> str | None:
    """Return `a.b` of an expression that is a dotted name, None of any other."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else None


class _Names(dict[str, Any]):
    """The names of a module, among them those that it makes when they are asked for."""

    def __init__(self, module: ModuleType, more: Mapping[str, Any]) -> None:
        super().__init__(more)
        self._module = module

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            if name in _KNOWN:
                return importlib.import_module(_KNOWN[name])
            raise KeyError(name) from None


def _evaluated(node: ast.expr, module: ModuleType, more: Mapping[str, Any] = _NONE) -> Any:
    """Return the value of an expression with the names of a module, and more."""
    code = compile(ast.fix_missing_locations(ast.Expression(node)), "<target>", "eval")
    # A lambda sees only the first of the two.
    return eval(code, {**vars(module), **more}, _Names(module, more))
