"""Claims of the rules on call shape (JXR5): what raises, when, and which way works."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rule_examples import example, reported, silent

from claims import Claim, joined, saved

Namespace = dict[str, Any]
X = np.linspace(0.1, 1.0, 6, dtype=np.float32).reshape(2, 3)
W = np.linspace(-1.0, 1.0, 9, dtype=np.float32).reshape(3, 3)


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


# -- 501: without a function ----------------------------------------------------------------------


def _keeps_the_dot(n: Namespace) -> None:
    assert saved(n["layer"], jnp.asarray(W), jnp.asarray(X)) == [("float32", (2, 3))]


def _bound(n: Namespace) -> None:
    wrapped = n["per_layer"](jnp.sin)
    assert saved(wrapped, jnp.asarray(X)) == []


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
            Claim(example=name, raises=TypeError, match="missing 1 required positional")
            for name in (
                "bad",
                "empty_parentheses",
                "called_with_the_layer",
                "partial_with_comments",
                "bound_to_a_name",
            )
        ),
        Claim(example="linen_class", raises=TypeError, match="missing 1 required", needs=("flax",)),
        Claim(_keeps_the_dot, source=example("JXR501").fixed),
        Claim(checkpointed("layer", W, X), source=example("JXR501", "empty_parentheses").fixed),
        Claim(
            checkpointed("rematted", W, X), source=example("JXR501", "called_with_the_layer").fixed
        ),
        Claim(checkpointed("layer", W, X), source=example("JXR501", "partial_with_comments").fixed),
        Claim(_bound, source=example("JXR501", "bound_to_a_name").fixed),
        Claim(
            lambda n: n["Block"]().init(jax.random.key(0), X, True),
            source=example("JXR501", "linen_class").fixed,
            needs=("flax",),
        ),
        Claim(working("one", X), source=_nnx_and_equinox_have_it, needs=("flax", "equinox")),
        Claim(working("two", X), source=_nnx_and_equinox_have_it, needs=("flax", "equinox")),
    ),
}

# -- 501: by position -----------------------------------------------------------------------------


def _saves_dots(n: Namespace) -> None:
    assert saved(n["loss"], jnp.asarray(W), jnp.asarray(X)) == [("float32", (2, 3))]


def _same_as_plain(n: Namespace) -> None:
    np.testing.assert_allclose(n["loss"](W, X), jnp.tanh(X @ W).sum(), rtol=1e-6)


CLAIMS["JXR501"] += (
    Claim(
        raising(TypeError, "loss", W, X, match="positional argument"), example="policy_by_position"
    ),
    Claim(
        raising(TypeError, "loss", X, match="positional argument"),
        example="argument_of_the_function",
    ),
    Claim(raising(AttributeError, "loss", W, X, match="sum"), example="call_of_the_function"),
    Claim(raising(TypeError, "loss", W, X), example="array"),
    Claim(example="partial_with_a_policy", raises=TypeError, match="positional argument"),
    Claim(
        raising(TypeError, "loss", X, match="positional argument"),
        example="equinox_positional",
        needs=("equinox",),
    ),
    Claim(_saves_dots, source=example("JXR501", "policy_by_position").fixed),
    Claim(_same_as_plain, source=example("JXR501", "call_of_the_function").fixed),
)

# -- 501: static_argnames -------------------------------------------------------------------------

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


CLAIMS["JXR501"] += (
    Claim(_traced, example="argnames", since=(0, 10, 2), remat3=False),
    Claim(_still_traced, example="argnames", since=(0, 10, 2), remat3=False),
    Claim(working("loss", X), example="argnames", since=(0, 10, 2), remat3=True),
    Claim(
        raising(TypeError, "loss", X, match="static_argnames"),
        example="argnames",
        before=(0, 10, 2),
    ),
    Claim(example="argnames_partial", raises=TypeError, match="static_argnames"),
    Claim(
        example="argnames_list_before_0_10",
        raises=TypeError,
        match="static_argnames",
        before=(0, 10, 2),
    ),
    Claim(
        example="argnames_linen_remat", raises=TypeError, match="static_argnames", needs=("flax",)
    ),
    Claim(
        example="argnames_equinox_filter_checkpoint",
        raises=TypeError,
        match="static_argnames",
        needs=("equinox",),
    ),
    Claim(
        raising(TypeError, "wrap", jnp.sin, match="static_argnames"),
        example="argnames_empty_before_0_10",
        before=(0, 10, 2),
    ),
    Claim(
        raising(TypeError, "stack", _either, X, True, True, match="static_argnames"),
        example="argnames_partial_in_one_branch",
        before=(0, 10, 2),
    ),
    Claim(
        raising(jax.errors.TracerBoolConversionError, "stack", _either, X, True, True),
        example="argnames_partial_in_one_branch",
        since=(0, 10, 2),
        remat3=False,
    ),
    Claim(working("stack", _either, X, True, False), example="argnames_partial_in_one_branch"),
    Claim(working("loss", X), source=example("JXR501", "argnames").fixed),
    Claim(_branches("layer"), source=example("JXR501", "argnames_partial").fixed),
    Claim(_branches("block"), source=example("JXR501", "argnames_list_before_0_10").fixed),
)

# -- 504 -----------------------------------------------------------------------------------------

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


_SILENT = [e.source for e in silent("JXR504")]
_RUN = [
    s for s in _SILENT if ("def model(x)" in s or "def loss(x)" in s) and "layer(*args)" not in s
]
CLAIMS["JXR504"] = (
    Claim(raising(ValueError, "loss", X, match="static_argnums"), remat3=False),
    Claim(raising(_TRACED, "loss", X), remat3=True),
    Claim(
        raising(ValueError, "loss", X, match="static_argnums"),
        example="passed_by_keyword",
        remat3=False,
    ),
    Claim(raising(_TRACED, "loss", X), example="passed_by_keyword", remat3=True),
    Claim(
        raising(TypeError, "layer", X, True, match="static_argnums"),
        example="list_in_a_decorator",
        remat3=False,
    ),
    Claim(_branches("layer"), example="list_in_a_decorator", remat3=True),
    Claim(_branches("layer"), source=example("JXR504", "list_in_a_decorator").fixed),
    Claim(_model(_TRACED), example="linen_self_not_counted", needs=("flax",)),
    Claim(_model(None), source=example("JXR504", "linen_self_not_counted").fixed, needs=("flax",)),
    Claim(_wrapped_minus_one, example="linen_negative_index", needs=("flax",)),
    Claim(
        _trunk(ValueError, True, match="static_argnums"),
        example="linen_passed_by_keyword",
        needs=("flax",),
        remat3=False,
    ),
    Claim(_trunk(_TRACED, True), example="linen_passed_by_keyword", needs=("flax",), remat3=True),
    Claim(_model(_TRACED), example="partitioning_self_not_counted", needs=("flax",)),
    Claim(_model(TypeError, "not iterable"), example="partitioning_lone_index", needs=("flax",)),
    Claim(_model(None), source=example("JXR504", "partitioning_lone_index").fixed, needs=("flax",)),
    Claim(
        raising(ValueError, "loss", X, match="static_argnums"),
        example="left_to_its_default",
        remat3=False,
    ),
    Claim(working("loss", X), example="left_to_its_default", remat3=True),
    Claim(
        raising(ValueError, "loss", X, match="static_argnums"),
        example="bound_method_with_self_counted",
        remat3=False,
    ),
    Claim(raising(_TRACED, "loss", X), example="bound_method_with_self_counted", remat3=True),
    Claim(
        _net(_TRACED),
        source=joined(example("JXR504", "linen_flag_branched_on_in_another_module")),
        needs=("flax",),
    ),
    Claim(_net(_TRACED), example="linen_flag_off_by_one", needs=("flax",)),
    Claim(_net(None), source=example("JXR504", "linen_flag_off_by_one").fixed, needs=("flax",)),
    Claim(_net(_TRACED), example="linen_flag_handed_to_dropout", needs=("flax",)),
    Claim(_net(_TRACED, inputs=2), example="linen_two_arrays_before_the_flag", needs=("flax",)),
    Claim(
        _net(None),
        source=joined(example("JXR504", "linen_static_in_another_module")),
        needs=("flax",),
    ),
    Claim(_keywords_of_partitioning, example="partitioning_passed_by_keyword", needs=("flax",)),
    Claim(raising(_TRACED, "loss", X), example="flag_by_keyword_not_marked"),
    Claim(raising(TypeError, "loss", X, match="not a valid JAX type"), example="string_not_marked"),
    Claim(_trunk(_TRACED, True), example="linen_flag_in_a_scan_not_marked", needs=("flax",)),
    Claim(_nnx_keywords, source=example("JXR504", "nnx_passed_by_keyword").source, needs=("flax",)),
    *(_good(source) for source in _RUN),
)

# -- 505 -----------------------------------------------------------------------------------------


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
    Claim(raises=ImportError, match="import|module", since=(0, 10)),
    Claim(working("layer", X), before=(0, 10)),
    Claim(working("layer", X), source=example("JXR505").fixed),
    Claim(
        example="two_names_in_one_import", raises=ImportError, match="import|module", since=(0, 10)
    ),
    Claim(working("layer", jnp.sin, X), source=example("JXR505", "two_names_in_one_import").fixed),
    Claim(
        raising(AttributeError, "layer", jnp.sin, X),
        example="attribute_of_ad_checkpoint",
        since=(0, 10),
    ),
    Claim(
        working("layer", jnp.sin, X), source=example("JXR505", "attribute_of_ad_checkpoint").fixed
    ),
    Claim(
        raising(NotImplementedError, "layer", jnp.sin, X, match="concrete"),
        example="concrete_false",
        since=(0, 10),
        before=(0, 11),
    ),
    Claim(
        raising(TypeError, "layer", jnp.sin, X, match="concrete"),
        example="concrete_false",
        since=(0, 11),
    ),
    Claim(working("layer", jnp.sin, X), example="concrete_false", before=(0, 8)),
    Claim(working("layer", jnp.sin, X), source=example("JXR505", "concrete_false").fixed),
    Claim(
        example="concrete_true_in_0_10",
        raises=(NotImplementedError, TypeError),
        match="concrete",
        since=(0, 10),
    ),
    Claim(example="checkpoint_name_of_jax", raises=ImportError, match="import|module"),
    Claim(working("name", X), source=example("JXR505", "checkpoint_name_of_jax").fixed),
    Claim(example="saved_residuals", raises=ImportError, match="import|module"),
    Claim(raising(AttributeError, "layer", jnp.sin), example="new_checkpoint"),
    Claim(
        lambda n: checkpointed("f", X)({"f": n["layer"](jnp.sin)}),
        source=example("JXR505", "new_checkpoint").fixed,
    ),
    Claim(raising(AttributeError, "layer", jnp.sin), example="custom_remat", before=(0, 11)),
    Claim(raising(AttributeError, "layer", jnp.sin), example="custom_remat", since=(0, 12)),
    Claim(
        raising(NotImplementedError, "layer", jnp.sin),
        example="concrete_true_in_0_7",
        before=(0, 11),
    ),
    Claim(_concrete_of_linen, example="linen_concrete_in_one_branch", needs=("flax",)),
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


CLAIMS["JXR506"] = (
    Claim(_public_is_the_same, source=_PRIVATELY),
    Claim(_functions_are_the_same, source=_PRIVATELY, since=(0, 8, 2)),
    Claim(_wrapper_is_the_same, source=_PRIVATELY, before=(0, 8, 2)),
    *(Claim(lambda n: None, source=e.fixed) for e in reported("JXR506").values()),
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
    e.source for e in silent("JXR507") if "def model(ws, x)" in e.source and "torch" not in e.source
]
CLAIMS["JXR507"] = (
    *(Claim(_all_last, example=name) for name in reported("JXR507")),
    *(Claim(_each_its_own, source=e.fixed) for e in reported("JXR507").values()),
    *(
        Claim(_in_order, source=source)
        for source in _IMMEDIATE
        if "scan" not in source and "(x) for w in ws" not in source
    ),
)
