"""Tell which frames of an eqn are the user's, and which function each of them called."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from types import CodeType

from jaxresid.inspector.jaxpr.frames import Frame
from jaxresid.inspector.variants.containers import is_container, is_graph, is_layer, layer_name

# The folders that libraries have their modules in: layers, which users call like functions.
_MODULE_FOLDERS = tuple(
    os.path.join(os.sep, *path.split("/"), "")
    for path in ("equinox/nn", "flax/linen", "flax/nnx", "haiku")
)


# Functions of their own until Python 3.12.
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})


def is_module(code: CodeType) -> bool:
    return (
        code.co_name == "__call__"
        and code.co_varnames[:1] == ("self",)
        and "site-packages" in code.co_filename
        and any(folder in code.co_filename for folder in _MODULE_FOLDERS)
    )


def _is_layer_of(caller: Frame | None, frame: Frame) -> bool:
    if caller is None or not is_container(caller.code):
        return False
    return is_layer(frame) if is_graph(caller.code) else is_module(frame.code)


@dataclass(frozen=True, slots=True)
class CallPath:
    """The frames and name scopes of an eqn, outermost first, and which frames are the user's.

    Among these are the modules of libraries that the user's code calls; and where there is no such
    code, what calls the layers of a model, and the layers.
    """

    frames: tuple[Frame, ...]
    users: tuple[int, ...]
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, frames: tuple[Frame, ...], scope: str = "") -> CallPath:
        users: list[int] = []
        for i, frame in enumerate(frames):
            caller = frames[users[-1]] if users else None
            by_user = caller is not None and caller.kind == "user"
            if (
                frame.kind == "user"
                or (by_user and is_module(frame.code))
                or _is_layer_of(caller, frame)
                or (not by_user and is_container(frame.code))
            ):
                users.append(i)
        return cls(frames, tuple(users), tuple(filter(None, scope.split("/"))))

    def callee(self, depth: int) -> int | None:
        """Return the number of the user frame of the function that the one at `depth` called.

        Bodies of comprehensions and generators belong to their caller.
        """
        for at in range(depth + 1, len(self.users)):
            code = self.frames[self.users[at]].code
            if code.co_name not in _COMPREHENSIONS and not code.co_flags & inspect.CO_GENERATOR:
                return at
        return None

    def layer(self, at: int) -> str | None:
        caller = self.users[at - 1] if at else -1
        return layer_name(self.frames, caller, self.users[at], self.scopes)

    def chain(self, depth: int, callee: int) -> tuple[Frame, ...]:
        return tuple(self.frames[at] for at in self.users[max(depth, 0) : callee])
