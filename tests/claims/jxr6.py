"""JXR6, modules of flax and Equinox."""

import jax
import jax.numpy as jnp
import pytest

from claims import Claim

X = jnp.full((3, 4), 0.5)


def _statistics(module):
    return module.block.norm.mean[...]


def _nnx_argument(namespace):
    """The running mean stays; with `nnx.remat`, and without a checkpoint, it moves."""
    from flax import nnx

    model = namespace["Model"](nnx.Rngs(0))
    before = _statistics(model)
    model(X)
    assert jnp.array_equal(_statistics(model), before)
    nnx.remat(lambda m, x: m(x))(model.block, X)
    moved = _statistics(model)
    assert not jnp.array_equal(moved, before)
    plain = namespace["Model"](nnx.Rngs(0))
    plain.block(X)
    assert jnp.allclose(moved, _statistics(plain))


def _nnx_method(namespace):
    from flax import nnx

    block = namespace["Block"]()
    block(X)
    assert block.calls[...] == 0

    @nnx.remat
    def count(block, x):
        block.calls[...] = block.calls[...] + 1
        return jnp.sin(x)

    count(block, X)
    assert block.calls[...] == 1


def _nnx_function(namespace):
    from flax import nnx

    block = namespace["Block"](nnx.Rngs(0))
    before = block.norm.mean[...]
    namespace["run"](block, X)
    assert jnp.array_equal(block.norm.mean[...], before)
    nnx.remat(lambda m, x: m(x))(block, X)
    assert not jnp.array_equal(block.norm.mean[...], before)


def _nnx_bound(namespace):
    from flax import errors, nnx

    with pytest.raises(errors.TraceContextError):
        namespace["Model"](nnx.Rngs(0))(X)


def _nnx_closed_over(namespace):
    from flax import errors, nnx

    with pytest.raises(errors.TraceContextError):
        namespace["forward"](namespace["Block"](nnx.Rngs(0)), X)


def _nnx_dropout(namespace):
    """The counter of the keys does not move: the same mask twice."""
    from flax import nnx

    def twice(checkpoint):
        dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        run = checkpoint(lambda m, x: m(x))
        return [run(dropout, jnp.ones(64)) for _ in range(2)]

    one, two = twice(jax.checkpoint)
    assert jnp.array_equal(one, two)
    one, two = twice(nnx.remat)
    assert not jnp.array_equal(one, two)


def _linen_raises(error):
    def check(namespace):
        with pytest.raises(error):
            namespace["Model"]().init(jax.random.key(0), X)

    return check


def _target_error(namespace):
    from flax import errors

    _linen_raises(errors.TransformTargetError)(namespace)


def _equinox(namespace):
    import equinox as eqx

    block, x = namespace["Block"](jnp.full((4, 4), 0.1)), X[0]
    with pytest.raises(TypeError, match="unhashable"):
        namespace["loss"](block, x)
    assert jnp.allclose(eqx.filter_checkpoint(block)(x), block(x))
    assert jnp.allclose(jax.checkpoint(lambda m, x: m(x))(block, x), block(x))


def _nnx_remat_bound(namespace):
    from flax import nnx

    model = namespace["Model"](nnx.Rngs(0))
    with pytest.raises(ValueError, match="bound methods"):
        model(X)
    assert jnp.allclose(nnx.remat(namespace["Model"].block)(model, X), model.block(X))


FIXED_LINEN = """
import flax.linen as nn

class Model(nn.Module):
    @nn.remat
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)

class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)

class Outer(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.remat(Block)()(x)
"""


def _linen_right(namespace):
    for name in ("Model", "Outer"):
        _, params = namespace[name]().init_with_output(jax.random.key(0), X)
        assert jax.tree.leaves(params)


def _names(module):
    params = module.init(jax.random.key(0), X)["params"]
    return set(params)


def _unnamed(plain, checkpointed):
    def check(namespace):
        model = namespace["Model"]
        assert _names(model(remat=False)) == plain
        assert _names(model(remat=True)) == checkpointed

    return check


NAMED = """
import flax.linen as nn

class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)

class Model(nn.Module):
    remat: bool = False
    @nn.compact
    def __call__(self, x):
        Layer = nn.remat(Block) if self.remat else Block
        return Layer(name="block")(x)

class Assigned(nn.Module):
    remat: bool = False
    def setup(self):
        Layer = nn.remat(Block) if self.remat else Block
        self.block = Layer()
    def __call__(self, x):
        return self.block(x)
"""


def _named(namespace):
    for name in ("Model", "Assigned"):
        assert _names(namespace[name](remat=False)) == {"block"}
        assert _names(namespace[name](remat=True)) == {"block"}


FLAX = ("flax",)
CLAIMS = {
    "JXR601": (
        Claim(_nnx_argument, needs=FLAX),
        Claim(_nnx_method, example="decorated_call_with_a_variable", needs=FLAX, remat3=False),
        Claim(
            _nnx_method,
            example="decorated_call_with_a_variable",
            needs=FLAX,
            since=(0, 12),
            remat3=True,
        ),
        Claim(_nnx_function, example="annotated_argument", needs=FLAX),
        Claim(_nnx_bound, example="instance_itself", needs=FLAX),
        Claim(_nnx_bound, example="closed_over_by_a_lambda", needs=FLAX),
        Claim(_nnx_closed_over, example="closed_over_by_nnx_remat", needs=FLAX),
        Claim(_nnx_bound, example="instance_with_nnx_remat", needs=FLAX),
        Claim(_nnx_dropout, source="", needs=FLAX),
    ),
    "JXR602": (
        Claim(_linen_raises(TypeError), needs=FLAX),
        Claim(_target_error, example="linen_instance_with_nn_remat", needs=FLAX),
        Claim(_equinox, example="equinox_module", needs=("equinox",)),
        Claim(_nnx_remat_bound, example="nnx_bound_method", needs=FLAX),
        Claim(_linen_raises(TypeError), example="linen_instance_of_setup", needs=FLAX),
        Claim(_linen_raises(TypeError), example="linen_class", needs=FLAX),
        Claim(_linen_right, source=FIXED_LINEN, needs=FLAX),
    ),
    "JXR603": (
        Claim(
            _unnamed({"Block_0", "Block_1"}, {"CheckpointBlock_0", "CheckpointBlock_1"}),
            needs=FLAX,
        ),
        Claim(
            _unnamed({"Block_0"}, {"CheckpointBlock_0"}), example="rebound_in_a_branch", needs=FLAX
        ),
        Claim(
            _unnamed({"Block_0"}, {"Core_remat_staticBlock_0"}),
            example="partial_of_partitioning",
            needs=FLAX,
        ),
        Claim(_named, source=NAMED, needs=FLAX),
    ),
}
