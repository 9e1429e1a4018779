"""Training steps that return their arguments updated, and programs that only look like them.

`STEPS` are around models of released libraries: `case(name)` imports the library, or skips the
test. Their arguments are shapes.
"""

import functools
import inspect
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import pytest


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def ids(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


@dataclass
class Case:
    """A step and what is to be said of it.

    Attributes:
      fun, args: the step and its call.
      arguments, argnums: the arguments that it could donate.
      names: what the remedy may use.
    """

    fun: object
    args: tuple
    arguments: list
    argnums: list
    names: dict = field(default_factory=dict)

    @property
    def line(self):
        return inspect.getsourcelines(inspect.unwrap(self.fun))[1]


def case(name, wide=False):
    return STEPS[name](1024 if wide else 128)


# -- a step without a library


def square_error(params, x):
    hidden = jax.nn.gelu(x @ params["up"])
    return jnp.mean((hidden @ params["down"] - x) ** 2)


def momentum(params, state, x, rate=0.1):
    value, gradient = jax.value_and_grad(square_error)(params, x)
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradient)
    return jax.tree.map(lambda p, m: p - rate * m, params, state), state, value


def parameters(width=256):
    return {"up": f32(width, 4 * width), "down": f32(4 * width, width)}


def plain_inputs(width=256):
    return parameters(width), parameters(width), f32(64, width)


def plain():
    return jax.jit(momentum)


def _plain(width):
    step = jax.jit(momentum)
    args = plain_inputs(width)
    return Case(step, args, ["params", "state"], [0, 1], {"momentum": momentum})


# -- steps around libraries


def _linen(width):
    nn = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")
    optax = pytest.importorskip("optax")

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(1024, width)(tokens)
            for _ in range(2):
                x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x))
                x = x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x))))
            return nn.Dense(1024)(x)

    model, tokens = Encoder(), ids(4, 64)

    @jax.jit
    def train_step(state, batch):
        def loss(params):
            logits = state.apply_fn({"params": params}, batch)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch).mean()

        value, gradient = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradient), value

    def init(batch):
        params = model.init(jax.random.key(0), batch)["params"]
        return train_state.TrainState.create(
            apply_fn=model.apply, params=params, tx=optax.adamw(1e-3)
        )

    args = jax.eval_shape(init, tokens), tokens
    return Case(train_step, args, ["state"], [0], {"train_step": train_step.__wrapped__})


def _nnx(width):
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    class Mixer(nnx.Module):
        def __init__(self, rngs):
            self.attention = nnx.MultiHeadAttention(4, width, rngs=rngs, decode=False)
            self.norm = nnx.LayerNorm(width, rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(x)))

    @nnx.jit
    def train_step(model, optimizer, x):
        value, gradient = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, gradient)
        return value

    def make():
        model = Mixer(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    args = (*nnx.eval_shape(make), f32(4, 64, width))
    names = {"train_step": train_step.__wrapped__, "nnx": nnx}
    return Case(train_step, args, ["model", "optimizer"], [0, 1], names)


def _equinox(width):
    eqx = pytest.importorskip("equinox")
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-3)

    @eqx.filter_jit
    def make_step(batch, model, opt_state):
        def loss(model):
            return jnp.mean((jax.vmap(model)(batch) - batch) ** 2)

        value, gradient = eqx.filter_value_and_grad(loss)(model)
        updates, opt_state = optimizer.update(gradient, opt_state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), opt_state, value

    def make():
        model = eqx.nn.MLP(width, width, 4 * width, 2, key=jax.random.key(0))
        return model, optimizer.init(eqx.filter(model, eqx.is_array))

    args = (f32(64, width), *eqx.filter_eval_shape(make))
    names = {"make_step": make_step.__wrapped__, "eqx": eqx}
    return Case(make_step, args, ["model", "opt_state"], [1, 2], names)


def _haiku(width):
    hk = pytest.importorskip("haiku")
    optax = pytest.importorskip("optax")

    @hk.without_apply_rng
    @hk.transform
    def model(x):
        x = x + hk.MultiHeadAttention(4, width // 4, w_init_scale=1.0)(x, x, x)
        return hk.nets.MLP([4 * width, width])(x)

    optimizer = optax.adam(1e-3)

    @jax.jit
    def update(params, opt_state, x):
        value, gradient = jax.value_and_grad(lambda p: jnp.mean(model.apply(p, x) ** 2))(params)
        updates, opt_state = optimizer.update(gradient, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    x = f32(4, 64, width)
    params = jax.eval_shape(model.init, jax.random.key(0), x)
    args = params, jax.eval_shape(optimizer.init, params), x
    return Case(update, args, ["params", "opt_state"], [0, 1], {"update": update.__wrapped__})


def _optax(width):
    optax = pytest.importorskip("optax")
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adafactor(1e-3))

    @jax.jit
    def step(carry, x):
        params, opt_state = carry
        value, gradient = jax.value_and_grad(square_error)(params, x)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    params = parameters(width)
    args = (params, jax.eval_shape(optimizer.init, params)), f32(64, width)
    return Case(step, args, ["carry"], [0], {"step": step.__wrapped__})


STEPS = {
    "plain": _plain,
    "linen": _linen,
    "nnx": _nnx,
    "equinox": _equinox,
    "haiku": _haiku,
    "optax": _optax,
}


# -- steps of which only a part is to be said


def with_target_network():
    @jax.jit
    def step(params, target, x):
        def loss(params):
            wanted = jax.nn.gelu(x @ target["up"]) @ target["down"]
            return square_error(params, x) + jnp.mean((wanted - x @ params["up"][:, :256]) ** 2)

        gradient = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    return step, (parameters(), parameters(), f32(64, 256))


def half_donated():
    return jax.jit(momentum, donate_argnums=0), plain_inputs()


# -- programs that return something like their arguments and need no donation


def _donated():
    return jax.jit(momentum, donate_argnums=(0, 1)), plain_inputs()


def _loss():
    return square_error, (parameters(), f32(64, 256))


def _gradients_alone():
    return jax.jit(jax.value_and_grad(square_error)), (parameters(), f32(64, 256))


def _updates_alone():
    """The caller adds the updates to the parameters, which it keeps."""

    @jax.jit
    def step(params, x):
        return jax.tree.map(lambda g: -0.1 * g, jax.grad(square_error)(params, x))

    return step, (parameters(), f32(64, 256))


def _frozen_beside():
    """The frozen half of the argument does not come back, and the caller needs it again."""

    @jax.jit
    def step(params, x):
        def loss(tuned):
            return square_error({**params, **tuned}, x)

        tuned = {"down": params["down"]}
        return jax.tree.map(lambda p, g: p - 0.1 * g, tuned, jax.grad(loss)(tuned))

    return step, (parameters(), f32(64, 256))


def _wide_activations():
    """The peak is of activations; the parameters are next to nothing."""
    return jax.jit(momentum), (parameters(64), parameters(64), f32(65536, 64))


def _other_dtype():
    """What comes back is float32, and cannot be in the buffer of what was bfloat16."""

    @jax.jit
    def step(params, x):
        gradient = jax.grad(square_error)(params, x)
        return jax.tree.map(lambda p, g: p.astype(jnp.float32) - 0.1 * g, params, gradient)

    narrow = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.bfloat16), parameters())
    return step, (narrow, f32(64, 256))


def _reconstruction():
    """An output like the batch, which is none of its next values."""

    @jax.jit
    def step(params, x):
        def loss(params):
            out = jax.nn.gelu(x @ params["up"]) @ params["down"]
            return jnp.mean((out - x) ** 2), out

        (_, out), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return out, jax.tree.map(jnp.linalg.norm, gradient)

    return step, (parameters(64), f32(4096, 64))


def _closed_over():
    """The old parameters are constants of the step, not arguments."""
    params = {"up": jnp.ones((256, 1024)), "down": jnp.ones((1024, 256))}

    @jax.jit
    def step(x):
        gradient = jax.grad(square_error)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    return step, (f32(64, 256),)


def _read_alone():
    """Influence of a batch on another: two gradients, and neither argument comes back."""

    @jax.jit
    def step(params, x, y):
        one, other = jax.grad(square_error)(params, x), jax.grad(square_error)(params, y)
        return jax.tree.map(jnp.vdot, one, other)

    return step, (parameters(), f32(64, 256), f32(64, 256))


def _inner_loop():
    """Meta-learning: the adapted parameters stay inside, and the loss comes back."""

    @jax.jit
    def step(params, x, y):
        def adapted_loss(params):
            gradient = jax.grad(square_error)(params, x)
            return square_error(jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), y)

        return jax.value_and_grad(adapted_loss)(params)

    return step, (parameters(), f32(64, 256), f32(64, 256))


def _sampled():
    """A Langevin step on the batch, not on the parameters, of a small batch."""

    @functools.partial(jax.jit, donate_argnames="x")
    def step(params, x):
        return x - 0.1 * jax.grad(square_error, argnums=1)(params, x)

    return step, (parameters(), f32(64, 256))


SILENT = {
    "donated": _donated,
    "a loss": _loss,
    "gradients alone": _gradients_alone,
    "updates alone": _updates_alone,
    "frozen beside": _frozen_beside,
    "wide activations": _wide_activations,
    "other dtype": _other_dtype,
    "a reconstruction": _reconstruction,
    "closed over": _closed_over,
    "read alone": _read_alone,
    "inner loop": _inner_loop,
    "sampled": _sampled,
}
