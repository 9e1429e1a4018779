"""What the rules claim about run time, executed against the JAX that is installed.

Each module here holds `CLAIMS`: code -> claims. `tests/test_claims.py` runs them all and sees to it
that no rule that speaks of an effect goes without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rule_examples import Example


@dataclass(frozen=True)
class Claim:
    """One claim of a rule.

    Attributes:
      check: gets the namespace that the source made, and asserts.
      example: name of the example whose source is executed (marks included, they are comments).
      source: executed instead of an example.
      raises: executing the source itself raises this, and `check` is not called.
      since, before: the versions of jax the claim is about.
      needs: modules to import, else the claim is skipped.
      remat3: whether it holds with `jax_remat3` on; None: both.
    """

    check: Callable[[dict[str, Any]], None] | None = None
    example: str = "bad"
    source: str | None = None
    raises: type[Exception] | tuple[type[Exception], ...] | None = None
    match: str = ""
    since: tuple[int, ...] = (0, 7)
    before: tuple[int, ...] | None = None
    needs: tuple[str, ...] = ()
    remat3: bool | None = None


def joined(example: Example) -> str:
    """The modules of an example as one: the others first, and no import between them."""
    names = ["module", *(path.removesuffix(".py") for path in example.files)]
    lines = "\n".join([*example.files.values(), example.source]).split("\n")
    return "\n".join(s for s in lines if not s.startswith(tuple(f"from {n} " for n in names)))


def saved(fun: Callable[..., Any], *args: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every array that the backward pass keeps: the leaves of `jax.vjp`,
    equal ones once, the arguments left out."""
    import jax

    _, vjp = jax.vjp(fun, *args)
    given = {id(a) for a in jax.tree.leaves(args)}
    pointers = {_pointer(a) for a in jax.tree.leaves(args)}
    leaves = {
        _pointer(x): (str(x.dtype), x.shape)
        for x in jax.tree.leaves(vjp)
        if hasattr(x, "dtype") and id(x) not in given and _pointer(x) not in pointers
    }
    return sorted(leaves.values())


def _pointer(x: Any) -> Any:
    try:
        return x.unsafe_buffer_pointer()
    except Exception:
        return id(x)


def flops(fun: Callable[..., Any], *args: Any) -> float:
    """What XLA counts for the compiled function."""
    import jax

    cost = jax.jit(fun).lower(*args).compile().cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return float(cost["flops"])


def temp_nbytes(fun: Callable[..., Any], *args: Any) -> int:
    """XLA's temporary memory for the compiled function."""
    import jax

    return int(jax.jit(fun).lower(*args).compile().memory_analysis().temp_size_in_bytes)


def count(fun: Callable[..., Any], primitive: str, *args: Any) -> int:
    """How many eqns of a primitive the function's jaxpr has, inner jaxprs included."""
    import jax

    def inner(jaxpr: Any) -> int:
        total = 0
        for eqn in jaxpr.eqns:
            total += eqn.primitive.name == primitive
            for value in eqn.params.values():
                for item in value if isinstance(value, (tuple, list)) else (value,):
                    item = getattr(item, "jaxpr", item)
                    if hasattr(item, "eqns"):
                        total += inner(item)
        return total

    return inner(jax.make_jaxpr(fun)(*args).jaxpr)
