"""The memory by module: a tree whose figures add up, for models of three libraries."""

import jax
import jax.numpy as jnp
import pytest

from jaxresid.inspector.call.question import Question
from jaxresid.inspector.modules import _Modules
from jaxresid.inspector.report import inspection

F32 = jnp.float32


def tree(fun, *args, on="gpu:h100"):
    report = inspection(Question(fun, args, on=on)).report
    found = {m.path: m for m in report.modules}
    peak = report.peak.nbytes
    # What is at the top adds up to everything, and no module has less than what is in it.
    tops = [m for m in report.modules if len(m.path) <= 1]
    assert sum(m.peak_nbytes for m in tops) == peak
    assert sum(m.residuals_nbytes for m in tops) == report.totals.computed_nbytes
    for path, module in found.items():
        inside = [m for p, m in found.items() if len(p) == len(path) + 1 and p[:-1] == path]
        if path:
            assert module.peak_nbytes >= sum(m.peak_nbytes for m in inside)
            assert module.parameters_nbytes >= sum(m.parameters_nbytes for m in inside)
    # Each is right before what is in it.
    order = list(found)
    for at, path in enumerate(order):
        assert len(path) <= 1 or order[at - 1][: len(path) - 1] == path[:-1]
    assert () not in found or order[-1] == ()
    return found


def test_parameters_by_their_paths_alone():
    def loss(params, x):
        for layer in params["layers"]:
            x = jnp.sin(x @ layer["w"]) + layer["b"]
        return (x @ params["head"]["w"]).sum()

    layers = [{"w": jnp.ones((8, 8)), "b": jnp.ones(8)} for _ in range(3)]
    found = tree(loss, {"layers": layers, "head": {"w": jnp.ones((8, 2))}}, jnp.ones((4, 8)))
    assert found["layers[*]",].parameters_nbytes == 3 * (64 + 8) * 4
    assert found["layers[*]",].gradients_nbytes == 3 * (64 + 8) * 4
    assert found["head",].parameters_nbytes == 16 * 4
    assert found["x",].parameters_nbytes == 4 * 8 * 4
    assert found["x",].optimizer_nbytes == 0


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("model.blocks[3].mlp.up.kernel", ("blocks[*]", "mlp", "up")),
        ("model['blocks'][3]['up']['kernel'].value", ("blocks[*]", "up")),
        ("params['attention']['value']", ("attention",)),
        ("params['params']['dense_1']['bias']", ("dense_*",)),
        ("layers[2]['w']", ("layers[*]",)),
        ("stacked['w']", ("stacked",)),
        ("x", ("x",)),
    ],
)
def test_the_module_that_holds_a_parameter(path, module):
    assert _Modules(frozenset()).holder(path) == module


def test_what_is_around_a_model_is_no_module():
    found = _Modules(frozenset({"encoder"}))
    assert found.holder("state.model.variables['encoder']['up']['kernel']") == ("encoder", "up")
    found.parameters[("encoder", "up", "kernel")] = ("encoder", "up")
    assert found.of("opt_state[0].mu['encoder']['up']['kernel']") == ("encoder", "up")
    assert found.of("opt_state[0].count") == ()
    assert found.method(("Model", "encoder", "up")) == ("encoder", "up")
    assert found.method(("Loss",)) == ("Loss",)


@pytest.mark.integration
@pytest.mark.parametrize("library", ["equinox", "linen", "nnx"])
def test_optimizer_state_and_residuals_are_with_their_module(library):
    pytest.importorskip("optax")
    step, args = {"equinox": _equinox, "linen": _linen, "nnx": _nnx}[library]()
    found = tree(step, *args)
    block = next(path for path in found if len(path) == 1 and path[0].startswith("block"))
    up = next(path for path in found if path[-1:] == ("up",))
    assert up[0] == block[0]
    kernel = (16 * 64 + 64) * 4
    count = found[up].parameters_nbytes // kernel
    assert found[up].parameters_nbytes == count * kernel
    assert count == 2
    assert found[up].gradients_nbytes == found[up].parameters_nbytes
    assert found[up].optimizer_nbytes == 2 * found[up].parameters_nbytes
    assert found[block].residuals_nbytes > 0
    assert found[block].peak_nbytes >= 3 * found[block].parameters_nbytes


def _equinox():
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        def __call__(self, x):
            return x + jax.vmap(self.down)(jnp.sin(jax.vmap(self.up)(x)))

    class Model(eqx.Module):
        blocks: list

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    keys = jax.random.split(jax.random.key(0), 4)
    model = Model(
        [
            Block(eqx.nn.Linear(16, 64, key=keys[i]), eqx.nn.Linear(64, 16, key=keys[i + 2]))
            for i in range(2)
        ]
    )
    optimizer = optax.adam(1e-3)

    def step(model, state, x):
        grads = eqx.filter_grad(lambda m, x: (m(x) ** 2).sum())(model, x)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(model, updates), state

    return step, (model, optimizer.init(eqx.filter(model, eqx.is_array)), jnp.ones((32, 16)))


def _linen():
    nn, optax = pytest.importorskip("flax.linen"), pytest.importorskip("optax")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + nn.Dense(16, name="down")(jnp.sin(nn.Dense(64, name="up")(x)))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for i in range(2):
                x = Block(name=f"block_{i}")(x)
            return x

    model, optimizer, x = Model(), optax.adam(1e-3), jnp.ones((32, 16))
    params = model.init(jax.random.key(0), x)

    def step(params, state, x):
        grads = jax.grad(lambda p: (model.apply(p, x) ** 2).sum())(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state

    return step, (params, optimizer.init(params), x)


def _nnx():
    nnx, optax = pytest.importorskip("flax.nnx"), pytest.importorskip("optax")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(16, 64, rngs=rngs)
            self.down = nnx.Linear(64, 16, rngs=rngs)

        def __call__(self, x):
            return x + self.down(jnp.sin(self.up(x)))

    class Model(nnx.Module):
        def __init__(self, rngs):
            blocks = [Block(rngs) for _ in range(2)]
            self.blocks = nnx.List(blocks) if hasattr(nnx, "List") else blocks

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        grads = nnx.grad(lambda m: (m(x) ** 2).sum())(model)
        optimizer.update(model, grads)

    return step, (model, optimizer, jnp.ones((32, 16)))
