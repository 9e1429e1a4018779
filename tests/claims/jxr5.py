"""Claims of the rules on call shape (JXR5): what raises, when, and which way works."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from claims import Claim, joined, saved
from jaxresid.linter.rules.checkpoint_as_decorator_factory import CheckpointAsDecoratorFactory
from jaxresid.linter.rules.checkpoint_positional_arguments import CheckpointPositionalArguments
from jaxresid.linter.rules.effect_in_checkpoint import EffectInCheckpoint
from jaxresid.linter.rules.ignored_static_argnames import IgnoredStaticArgnames
from jaxresid.linter.rules.late_bound_checkpoint import LateBoundCheckpoint
from jaxresid.linter.rules.private_checkpoint_import import PrivateCheckpointImport
from jaxresid.linter.rules.removed_checkpoint_api import RemovedCheckpointApi
from jaxresid.linter.rules.static_argument_index import StaticArgumentIndex

Namespace = dict[str, Any]
X = np.linspace(0.1, 1.0, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(-1.0, 1.0, 9, dtype=np.float32).reshape(3, 3)


def executed(source: str | None) -> Namespace:
    assert source is not None
    namespace: Namespace = {"__name__": "example"}
    exec(compile(source, "<example>", "exec"), namespace)
    return namespace


def raising(
    error: type[Exception], name: str, *args: Any, match: str | None = None
) -> Callable[[Namespace], None]:
    """A check that calling a function of the example raises."""

    def check(namespace: Namespace) -> None:
        with pytest.raises(error, match=match):
            namespace[name](*args)

    return check


def working(name: str, *args: Any) -> Callable[[Namespace], None]:
    """A check that calling a function of the example gives finite numbers."""

    def check(namespace: Namespace) -> None:
        assert np.isfinite(np.asarray(namespace[name](*args))).all()

    return check


def checkpointed(name: str, *args: Any) -> Callable[[Namespace], None]:
    """A check that a function of the example keeps nothing but its arguments."""

    def check(namespace: Namespace) -> None:
        assert saved(namespace[name], *map(jnp.asarray, args)) == []

    return check


# -- 501 -----------------------------------------------------------------------------------------


def _keeps_the_dot(n: Namespace) -> None:
    assert saved(n["layer"], jnp.asarray(W), jnp.asarray(X)) == [("float32", (2, 3))]


def _bound(n: Namespace) -> None:
    wrapped = n["per_layer"](jnp.sin)
    assert saved(wrapped, jnp.asarray(X)) == []


_FACTORY = CheckpointAsDecoratorFactory.bad
_nnx_and_equinox_have_it = """
import equinox as eqx
from flax import nnx

@nnx.remat(prevent_cse=False)
def one(x):
    return x * x

@eqx.filter_checkpoint(prevent_cse=False)
def two(x):
    return x * x
"""

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "JXR501": (
        *(
            Claim(bad=i, raises=TypeError, match="missing 1 required positional")
            for i in (0, 1, 2, 4, 5)
        ),
        Claim(bad=3, raises=TypeError, match="missing 1 required", needs=("flax",)),
        Claim(_keeps_the_dot, source=_FACTORY[0].fixed),
        Claim(checkpointed("layer", W, X), source=_FACTORY[1].fixed),
        Claim(checkpointed("rematted", W, X), source=_FACTORY[2].fixed),
        Claim(checkpointed("layer", W, X), source=_FACTORY[4].fixed),
        Claim(_bound, source=_FACTORY[5].fixed),
        Claim(
            lambda n: n["Block"]().init(jax.random.key(0), X, True),
            source=_FACTORY[3].fixed,
            needs=("flax",),
        ),
        Claim(working("one", X), source=_nnx_and_equinox_have_it, needs=("flax", "equinox")),
        Claim(working("two", X), source=_nnx_and_equinox_have_it, needs=("flax", "equinox")),
    ),
}

# -- 502 -----------------------------------------------------------------------------------------

_POSITIONAL = CheckpointPositionalArguments.bad


def _saves_dots(n: Namespace) -> None:
    assert saved(n["loss"], jnp.asarray(W), jnp.asarray(X)) == [("float32", (2, 3))]


def _same_as_plain(n: Namespace) -> None:
    np.testing.assert_allclose(n["loss"](W, X), jnp.tanh(X @ W).sum(), rtol=1e-6)


CLAIMS["JXR502"] = (
    Claim(raising(TypeError, "loss", W, X, match="positional argument"), bad=0),
    Claim(raising(TypeError, "loss", X, match="positional argument"), bad=1),
    Claim(raising(AttributeError, "loss", W, X, match="sum"), bad=2),
    Claim(raising(TypeError, "loss", W, X), bad=3),
    Claim(bad=4, raises=TypeError, match="positional argument"),
    Claim(raising(TypeError, "loss", X, match="positional argument"), bad=5, needs=("equinox",)),
    Claim(_saves_dots, source=_POSITIONAL[0].fixed),
    Claim(_same_as_plain, source=_POSITIONAL[2].fixed),
)

# -- 503 -----------------------------------------------------------------------------------------

_ARGNAMES = IgnoredStaticArgnames.bad
_traced = raising(jax.errors.TracerBoolConversionError, "loss", X)


def _still_traced(n: Namespace) -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.checkpoint(n["layer"], static_argnames="train")(X, train=True)


def _branches(name: str) -> Callable[[Namespace], None]:
    def check(n: Namespace) -> None:
        np.testing.assert_allclose(n[name](X, True), 2 * X)
        np.testing.assert_allclose(n[name](X, False), X)

    return check


def _either(x: jax.Array, train: bool) -> jax.Array:
    return x if train else -x


CLAIMS["JXR503"] = (
    Claim(_traced, bad=0, since=(0, 10, 2), remat3=False),
    Claim(_still_traced, bad=0, since=(0, 10, 2), remat3=False),
    Claim(working("loss", X), bad=0, since=(0, 10, 2), remat3=True),
    Claim(raising(TypeError, "loss", X, match="static_argnames"), bad=0, before=(0, 10, 2)),
    Claim(bad=1, raises=TypeError, match="static_argnames"),
    Claim(bad=2, raises=TypeError, match="static_argnames", before=(0, 10, 2)),
    Claim(bad=3, raises=TypeError, match="static_argnames", needs=("flax",)),
    Claim(bad=4, raises=TypeError, match="static_argnames", needs=("equinox",)),
    Claim(raising(TypeError, "wrap", jnp.sin, match="static_argnames"), bad=5, before=(0, 10, 2)),
    Claim(
        raising(TypeError, "stack", _either, X, True, True, match="static_argnames"),
        bad=6,
        before=(0, 10, 2),
    ),
    Claim(
        raising(jax.errors.TracerBoolConversionError, "stack", _either, X, True, True),
        bad=6,
        since=(0, 10, 2),
        remat3=False,
    ),
    Claim(working("stack", _either, X, True, False), bad=6),
    Claim(working("loss", X), source=_ARGNAMES[0].fixed),
    Claim(_branches("layer"), source=_ARGNAMES[1].fixed),
    Claim(_branches("block"), source=_ARGNAMES[2].fixed),
)

# -- 504 -----------------------------------------------------------------------------------------

_INDEX = StaticArgumentIndex.bad
_TRACED = jax.errors.TracerBoolConversionError


def _model(error: type[Exception] | None, match: str | None = None) -> Callable[[Namespace], None]:
    """Runs `model` of an example as the body of a linen module."""

    def check(n: Namespace) -> None:
        import flax.linen as nn

        class Outer(nn.Module):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                return n["model"](x)

        run = Outer().init_with_output
        if error is None:
            assert np.isfinite(run(jax.random.key(0), X)[0]).all()
            return
        with pytest.raises(error, match=match):
            run(jax.random.key(0), X)

    return check


def _wrapped_minus_one(n: Namespace) -> None:
    import flax.linen as nn

    with pytest.raises(_TRACED):
        n["Wrapped"]().init(jax.random.key(0), X, None, True)
    right = nn.remat(n["Block"], static_argnums=(3,))
    right().init(jax.random.key(0), X, None, True)


def _trunk(
    error: type[Exception], *args: Any, match: str | None = None
) -> Callable[[Namespace], None]:
    def check(n: Namespace) -> None:
        with pytest.raises(error, match=match):
            n["Trunk"]().init(jax.random.key(0), X, *args)

    return check


def _keywords_of_partitioning(n: Namespace) -> None:
    with (
        pytest.warns(RuntimeWarning, match="kwargs are not supported in remat"),
        pytest.raises(TypeError, match="train"),
    ):
        n["Trunk"]().init(jax.random.key(0), X)


def _good(source: str) -> Claim:
    assert any(e.source == source for e in StaticArgumentIndex.good)
    name = "model" if "def model" in source else "loss"
    if name == "model":
        return Claim(_model(None), source=source, needs=("flax",))
    return Claim(working("loss", X), source=source, needs=("equinox",) if "eqx" in source else ())


def _net(error: type[Exception] | None, inputs: int = 1) -> Callable[[Namespace], None]:
    """Initializes the module `Net` of an example, of so many inputs."""

    def check(n: Namespace) -> None:
        expected = pytest.raises(error) if error is not None else contextlib.nullcontext()
        with expected:
            n["Net"]().init(jax.random.key(0), *[jnp.ones((2, 8))] * inputs)

    return check


def _nnx_keywords(n: Namespace) -> None:
    from flax import nnx

    class Model(nnx.Module):
        def __call__(self, x: Any) -> Any:
            return x * 3

    np.testing.assert_allclose(n["loss"](Model(), X), 6 * X.sum(), rtol=1e-6)


_GOOD = [e.source for e in StaticArgumentIndex.good]
_RUN = [s for s in _GOOD if ("def model(x)" in s or "def loss(x)" in s) and "layer(*args)" not in s]
CLAIMS["JXR504"] = (
    Claim(raising(ValueError, "loss", X, match="static_argnums"), bad=0, remat3=False),
    Claim(raising(_TRACED, "loss", X), bad=0, remat3=True),
    Claim(raising(ValueError, "loss", X, match="static_argnums"), bad=1, remat3=False),
    Claim(raising(_TRACED, "loss", X), bad=1, remat3=True),
    Claim(raising(TypeError, "layer", X, True, match="static_argnums"), bad=2, remat3=False),
    Claim(_branches("layer"), bad=2, remat3=True),
    Claim(_branches("layer"), source=_INDEX[2].fixed),
    Claim(_model(_TRACED), bad=3, needs=("flax",)),
    Claim(_model(None), source=_INDEX[3].fixed, needs=("flax",)),
    Claim(_wrapped_minus_one, bad=4, needs=("flax",)),
    Claim(_trunk(ValueError, True, match="static_argnums"), bad=5, needs=("flax",), remat3=False),
    Claim(_trunk(_TRACED, True), bad=5, needs=("flax",), remat3=True),
    Claim(_model(_TRACED), bad=6, needs=("flax",)),
    Claim(_model(TypeError, "not iterable"), bad=7, needs=("flax",)),
    Claim(_model(None), source=_INDEX[7].fixed, needs=("flax",)),
    Claim(raising(ValueError, "loss", X, match="static_argnums"), bad=8, remat3=False),
    Claim(working("loss", X), bad=8, remat3=True),
    Claim(raising(ValueError, "loss", X, match="static_argnums"), bad=10, remat3=False),
    Claim(raising(_TRACED, "loss", X), bad=10, remat3=True),
    Claim(_net(_TRACED), source=joined(_INDEX[14]), needs=("flax",)),
    Claim(_net(_TRACED), bad=15, needs=("flax",)),
    Claim(_net(None), source=_INDEX[15].fixed, needs=("flax",)),
    Claim(_net(_TRACED), bad=16, needs=("flax",)),
    Claim(_net(_TRACED, inputs=2), bad=17, needs=("flax",)),
    Claim(_net(None), source=joined(StaticArgumentIndex.good[0]), needs=("flax",)),
    Claim(_keywords_of_partitioning, bad=9, needs=("flax",)),
    Claim(raising(_TRACED, "loss", X), bad=11),
    Claim(raising(TypeError, "loss", X, match="not a valid JAX type"), bad=12),
    Claim(_trunk(_TRACED, True), bad=13, needs=("flax",)),
    Claim(_nnx_keywords, source=next(s for s in _GOOD if "m, x, train=True" in s), needs=("flax",)),
    *(_good(source) for source in _RUN),
)

# -- 505 -----------------------------------------------------------------------------------------

_REMOVED = RemovedCheckpointApi.bad


def _concrete_of_linen(n: Namespace) -> None:
    import flax.linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(x)

    class Model(nn.Module):
        remat: bool

        @nn.compact
        def __call__(self, x):
            return n["stack"]([Layer], x, self.remat)

    with pytest.raises(NotImplementedError, match="concrete"):
        Model(remat=True).init(jax.random.key(0), X)
    Model(remat=False).init(jax.random.key(0), X)


CLAIMS["JXR505"] = (
    Claim(bad=0, raises=ImportError, match="import|module", since=(0, 10)),
    Claim(working("layer", X), bad=0, before=(0, 10)),
    Claim(working("layer", X), source=_REMOVED[0].fixed),
    Claim(bad=1, raises=ImportError, match="import|module", since=(0, 10)),
    Claim(working("layer", jnp.sin, X), source=_REMOVED[1].fixed),
    Claim(raising(AttributeError, "layer", jnp.sin, X), bad=2, since=(0, 10)),
    Claim(working("layer", jnp.sin, X), source=_REMOVED[2].fixed),
    Claim(
        raising(NotImplementedError, "layer", jnp.sin, X, match="concrete"),
        bad=3,
        since=(0, 10),
        before=(0, 11),
    ),
    Claim(raising(TypeError, "layer", jnp.sin, X, match="concrete"), bad=3, since=(0, 11)),
    Claim(working("layer", jnp.sin, X), bad=3, before=(0, 8)),
    Claim(working("layer", jnp.sin, X), source=_REMOVED[3].fixed),
    Claim(bad=4, raises=(NotImplementedError, TypeError), match="concrete", since=(0, 10)),
    Claim(bad=5, raises=ImportError, match="import|module"),
    Claim(working("name", X), source=_REMOVED[5].fixed),
    Claim(bad=6, raises=ImportError, match="import|module"),
    Claim(raising(AttributeError, "layer", jnp.sin), bad=7),
    Claim(lambda n: checkpointed("f", X)({"f": n["layer"](jnp.sin)}), source=_REMOVED[7].fixed),
    Claim(raising(AttributeError, "layer", jnp.sin), bad=8, before=(0, 11)),
    Claim(raising(AttributeError, "layer", jnp.sin), bad=8, since=(0, 12)),
    Claim(raising(NotImplementedError, "layer", jnp.sin), bad=9, before=(0, 11)),
    Claim(_concrete_of_linen, bad=10, needs=("flax",)),
)

# -- 506 -----------------------------------------------------------------------------------------


_PRIVATELY = """
from jax import ad_checkpoint
from jax._src import ad_checkpoint as private
from jax._src.interpreters import partial_eval
"""


def _public_is_the_same(n: Namespace) -> None:
    private, public = n["private"], n["ad_checkpoint"]
    assert private.checkpoint_policies is jax.checkpoint_policies
    for name in ("checkpoint_name", "print_saved_residuals"):
        assert getattr(private, name) is getattr(public, name)
    for name in ("Recompute", "Saveable", "Offloadable"):
        assert getattr(n["partial_eval"], name) is getattr(public, name)


def _functions_are_the_same(n: Namespace) -> None:
    assert n["private"].checkpoint is jax.checkpoint
    assert n["private"].remat is jax.remat


def _wrapper_is_the_same(n: Namespace) -> None:
    assert n["private"].checkpoint_wrapper is jax.checkpoint is jax.remat


_PRIVATE = PrivateCheckpointImport.bad
CLAIMS["JXR506"] = (
    Claim(_public_is_the_same, source=_PRIVATELY),
    Claim(_functions_are_the_same, source=_PRIVATELY, since=(0, 8, 2)),
    Claim(_wrapper_is_the_same, source=_PRIVATELY, before=(0, 8, 2)),
    *(Claim(lambda n: None, source=e.fixed) for e in _PRIVATE),
)

# -- 507 -----------------------------------------------------------------------------------------

_WS = [np.eye(3, dtype=np.float32) * s for s in (1.0, 2.0, 3.0)]


def _scales(n: Namespace) -> list[float]:
    layers = n["layers"](_WS)
    layers = layers.values() if isinstance(layers, dict) else layers
    return [float(layer(X)[0, 0] / X[0, 0]) for layer in layers]


def _all_last(n: Namespace) -> None:
    np.testing.assert_allclose(_scales(n), [3.0, 3.0, 3.0], rtol=1e-5)


def _each_its_own(n: Namespace) -> None:
    np.testing.assert_allclose(_scales(n), [1.0, 2.0, 3.0], rtol=1e-5)


def _in_order(n: Namespace) -> None:
    np.testing.assert_allclose(n["model"](_WS, X), 6 * X, rtol=1e-5)


_IMMEDIATE = [
    e.source
    for e in LateBoundCheckpoint.good
    if "def model(ws, x)" in e.source and "torch" not in e.source
]
CLAIMS["JXR507"] = (
    *(Claim(_all_last, bad=i) for i in range(len(LateBoundCheckpoint.bad))),
    *(Claim(_each_its_own, source=e.fixed) for e in LateBoundCheckpoint.bad),
    *(
        Claim(_in_order, source=source)
        for source in _IMMEDIATE
        if "scan" not in source and "(x) for w in ws" not in source
    ),
)

# -- 508 -----------------------------------------------------------------------------------------


def _twice(plain: int, after: int) -> Callable[[Namespace], None]:
    def check(n: Namespace) -> None:
        def times(fun: Callable[..., Any]) -> int:
            n["seen"].clear()
            jax.grad(lambda x: fun(x).sum())(X)
            jax.effects_barrier()
            return len(n["seen"])

        assert times(inspect.unwrap(n["layer"])) == plain
        assert times(n["layer"]) == after

    return check


def _printed_twice(n: Namespace) -> None:
    def lines(fun: Callable[..., Any]) -> int:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            jax.grad(lambda x: fun(x).sum())(X)
            jax.effects_barrier()
        return printed.getvalue().count("x = ")

    assert lines(inspect.unwrap(n["layer"])) == 1
    assert lines(n["layer"]) == 2


def _refused(n: Namespace) -> None:
    jax.grad(lambda x: n["layer"](x).sum())(X)
    n["loss"](X)
    with pytest.raises(NotImplementedError, match="Effects not supported"):
        jax.grad(n["loss"])(X)


CLAIMS["JXR508"] = (
    Claim(_printed_twice, bad=0),
    Claim(_refused, bad=1),
    Claim(_twice(1, 2), bad=2),
    Claim(_twice(1, 2), bad=3),
)
assert len(EffectInCheckpoint.bad) == 4
