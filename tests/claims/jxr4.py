"""JXR4, prevent_cse: what the compiled program computes.

FLOPs are compared from jax 0.12 on; before, XLA:CPU merged every recomputation outside loops.
"""

import jax
import jax.numpy as jnp
from rule_examples import example

from claims import Claim, flops, joined

WS = jnp.full((6, 64, 64), 0.01)
X = jnp.full((32, 64), 0.5)


def _layers(layer, ws, x):
    for w in ws:
        x = layer(w, x)
    return jnp.sum(x**2)


def _gradient_flops(loss):
    return flops(jax.value_and_grad(loss), WS, X)


def _plain(namespace):
    """The layer without its checkpoint."""
    layer = namespace["layer"]
    return getattr(layer, "__wrapped__", layer)


def _outside(namespace):
    layer = _plain(namespace)
    plain = _gradient_flops(lambda ws, x: _layers(layer, ws, x))
    fixed = _gradient_flops(lambda ws, x: _layers(jax.checkpoint(layer), ws, x))
    assert _gradient_flops(namespace["loss"]) == plain
    assert fixed > 1.2 * plain


def _through_jit(namespace):
    """Neither vmap nor an inner jit is a boundary."""
    layer = _plain(namespace)

    def loss(wrap):
        def run(ws, x):
            f = wrap(jax.checkpoint(layer, prevent_cse=False))
            return _layers(f, ws, x)

        return run

    plain = _gradient_flops(lambda ws, x: _layers(layer, ws, x))
    assert _gradient_flops(loss(jax.jit)) == plain
    batched = loss(lambda f: jax.vmap(f, in_axes=(None, 0)))
    unwrapped = _gradient_flops(lambda ws, x: _layers(jax.vmap(layer, in_axes=(None, 0)), ws, x))
    assert _gradient_flops(batched) == unwrapped


def _in_a_loop(namespace):
    """In a scan, a map and a fori_loop the recomputation stays, whatever `prevent_cse` is."""
    layer = _plain(namespace)

    def scan(f):
        return lambda ws, x: jnp.sum(jax.lax.scan(lambda x, w: (f(w, x), None), x, ws)[0])

    def mapped(f):
        return lambda ws, x: jnp.sum(jax.lax.map(lambda w: f(w, x), ws))

    def fori(f):
        return lambda ws, x: jnp.sum(jax.lax.fori_loop(0, 6, lambda i, x: f(ws[i], x), x))

    for loop in (scan, mapped, fori):
        plain, off, on = (
            _gradient_flops(loop(f))
            for f in (layer, jax.checkpoint(layer, prevent_cse=False), jax.checkpoint(layer))
        )
        assert 1.2 * plain < off <= on < 1.01 * off


def _scan(namespace):
    step = namespace["step"]

    def loss(body, **options):
        return lambda ws, x: jnp.sum(jax.lax.scan(body, x, ws, **options)[0])

    off = jax.checkpoint(step, prevent_cse=False)
    for options in ({"unroll": True}, {"unroll": 6}, {"unroll": 7}):
        plain = _gradient_flops(loss(step, **options))
        assert _gradient_flops(loss(off, **options)) == plain
        assert _gradient_flops(loss(jax.checkpoint(step), **options)) > 1.2 * plain
    assert _gradient_flops(namespace["loss"]) == _gradient_flops(loss(step, unroll=True))
    assert _gradient_flops(loss(off, unroll=2)) > 1.2 * _gradient_flops(loss(step, unroll=2))

    def single(body):
        return flops(jax.value_and_grad(loss(body, length=1)), WS[:1], X)

    assert single(off) == single(step) < single(jax.checkpoint(step))


def _merged_in_scan(namespace):
    step = namespace["step"]

    def loss(body):
        return lambda ws, x: jnp.sum(jax.lax.scan(body, x, ws, unroll=True)[0])

    assert _gradient_flops(namespace["loss"]) == _gradient_flops(loss(step))
    assert _gradient_flops(loss(jax.checkpoint(step))) > 1.2 * _gradient_flops(loss(step))


def _fori(namespace):
    layer = _plain(namespace)

    def loss(f, upper, **options):
        def run(ws, x):
            return jnp.sum(jax.lax.fori_loop(0, upper, lambda i, x: f(ws[i], x), x, **options))

        return run

    assert _gradient_flops(namespace["loss"]) == _gradient_flops(loss(layer, 1))
    off = jax.checkpoint(layer, prevent_cse=False)
    for upper, options in ((1, {}), (6, {"unroll": True})):
        plain = _gradient_flops(loss(layer, upper, **options))
        assert _gradient_flops(loss(off, upper, **options)) == plain
        assert _gradient_flops(loss(jax.checkpoint(layer), upper, **options)) > 1.2 * plain


def _linen(namespace):
    import flax.linen as nn

    def model(block):
        scanned = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=4,
            unroll=4,
        )()
        params = scanned.init(jax.random.key(0), X, None)
        return flops(
            jax.value_and_grad(lambda p, x: jnp.sum(scanned.apply(p, x, None)[0] ** 2)), params, X
        )

    block = namespace["Block"]
    plain = model(block)
    assert model(nn.remat(block, prevent_cse=False)) == plain < model(nn.remat(block))
    params = namespace["Model"]().init(jax.random.key(0), X)
    written = flops(
        jax.value_and_grad(lambda p, x: jnp.sum(namespace["Model"]().apply(p, x) ** 2)), params, X
    )
    assert written == plain


def _nested(namespace):
    """The gradient of a scan over pairs, with the inner checkpoints as given."""
    layer = namespace["layer"]
    ws = WS.reshape(3, 2, 64, 64)

    def loss(inner):
        def pair(x, ws):
            for w in ws:
                x = inner(w, x)
            return x, None

        body = jax.checkpoint(pair, prevent_cse=False)
        return flops(jax.value_and_grad(lambda ws, x: jnp.sum(jax.lax.scan(body, x, ws)[0])), ws, X)

    written = flops(jax.value_and_grad(namespace["loss"]), ws, X)
    assert written == loss(jax.checkpoint(layer, prevent_cse=False))
    return written, loss(layer), loss(jax.checkpoint(layer))


def _nested_merged(namespace):
    written, plain, fixed = _nested(namespace)
    assert written == plain < fixed


def _nested_kept(namespace):
    written, plain, fixed = _nested(namespace)
    assert written == fixed > plain


def _nested_in_line(namespace):
    """Outside loops too: the inner checkpoints add nothing to the outer ones."""
    layer = namespace["layer"].__wrapped__
    ws = WS[:4].reshape(2, 2, 64, 64)

    def loss(inner):
        @jax.checkpoint
        def stage(ws, x):
            return jnp.tanh(inner(ws[1], inner(ws[0], x)))

        def run(ws, x):
            return jnp.sum(stage(ws[1], stage(ws[0], x)))

        return flops(jax.value_and_grad(run), ws, X)

    written = flops(jax.value_and_grad(namespace["loss"]), ws, X)
    assert written == loss(layer) < loss(jax.checkpoint(layer))


def _nested_module(namespace):
    """The same in modules of linen: as without the inner one, in FLOPs."""
    import flax.linen as nn

    net, mlp, remat = namespace["Net"], namespace["Mlp"], nn.remat

    def gradient_flops(block):
        namespace["Block"] = block
        x = jnp.full((4, 8), 0.5)
        variables = net().init(jax.random.key(0), x)
        return flops(jax.grad(lambda v: jnp.sum(net().apply(v, x) ** 2)), variables)

    def block_of(inner):
        class Block(nn.Module):
            @nn.compact
            def __call__(self, x):
                for _ in range(3):
                    x = x + inner()(x)
                return x

        return Block

    written = gradient_flops(namespace["Block"])
    assert abs(written - gradient_flops(block_of(mlp))) < 0.02 * written
    assert gradient_flops(block_of(remat(mlp))) > 1.05 * written


def _nested_method(namespace):
    """The inner checkpoint of a method that is checkpointed as well is undone."""
    block = namespace["Block"]

    def loss(kind):
        def run(ws, x):
            made = kind(True)
            for w in ws:
                x = made(w, x)
            return jnp.sum(x)

        return run

    class Plain(block):
        def _forward(self, w, x):
            return x + self.mlp(w, x + self.mlp(w, x))

    class Barred(block):
        def _forward(self, w, x):
            mlp = jax.checkpoint(self.mlp)
            return x + mlp(w, x + mlp(w, x))

    written, plain, barred = (_gradient_flops(loss(k)) for k in (block, Plain, Barred))
    assert abs(written - plain) < 0.02 * plain
    assert barred > 1.05 * written


def _same_in_scan(namespace):
    """False instead of True: the same gradient, the same FLOPs."""

    def step(x, w):
        return jnp.sin(jnp.tanh(x @ w) @ w), None

    def loss(body):
        return lambda ws, x: jnp.sum(jax.lax.scan(body, x, ws)[0])

    off = loss(jax.checkpoint(step, prevent_cse=False))
    assert _gradient_flops(namespace["loss"]) == _gradient_flops(off)
    assert _gradient_flops(off) > 1.2 * _gradient_flops(loss(step))
    mine, fixed = (jax.grad(f)(WS, X) for f in (namespace["loss"], off))
    assert jnp.allclose(mine, fixed)


def _either_arm(namespace):
    """Scanned, the barriers change no FLOPs; called layer by layer, they alone keep the remat."""
    trunk, layer = namespace["trunk"], namespace["layer"]

    def loss(unrolled):
        return lambda ws, x: jnp.sum(trunk(ws, x, unrolled))

    def scanned(ws, x):
        body = jax.checkpoint(layer, prevent_cse=False)
        return jnp.sum(jax.lax.scan(body, x, ws)[0])

    def off(ws, x):
        for w in ws:
            x, _ = jax.checkpoint(layer, prevent_cse=False)(x, w)
        return jnp.sum(x)

    assert _gradient_flops(loss(False)) == _gradient_flops(scanned)
    assert _gradient_flops(loss(True)) > 1.1 * _gradient_flops(off)


def _trunk(word, is_kept):
    """The arm of a switch that calls layer by layer: the recomputation stays, or is merged away."""

    def check(namespace):
        trunk, layer = namespace["trunk"], _plain(namespace)

        def plain(ws, x):
            for w in ws:
                x, _ = layer(x, w)
            return jnp.sum(x)

        flops_here = _gradient_flops(lambda ws, x: jnp.sum(trunk(ws, x, word)))
        assert (flops_here > 1.1 * _gradient_flops(plain)) == is_kept

    return check


def _linen_switch(is_kept):
    """The layers of a module, called one after the other."""

    def check(namespace):
        import flax.linen as nn

        class Plain(nn.Module):
            @nn.compact
            def __call__(self, x):
                for _ in range(4):
                    x, _ = namespace["Block"]()(x, None)
                return x

        def cost(model):
            x = jnp.ones((32, 8))
            params = model.init(jax.random.key(0), x)
            return flops(jax.value_and_grad(lambda p: jnp.sum(model.apply(p, x) ** 2)), params)

        assert (cost(namespace["Net"](scan=False)) > 1.1 * cost(Plain())) == is_kept

    return check


def _unrolled(is_kept):
    """A scan that a switch unrolls completely."""

    def check(namespace):
        run, step = namespace["run"], namespace["step"]

        def plain(ws, x):
            return jnp.sum(jax.lax.scan(step, x, ws, unroll=True)[0])

        here = _gradient_flops(lambda ws, x: jnp.sum(run(ws, x, True)))
        assert (here > 1.1 * _gradient_flops(plain)) == is_kept

    return check


CLAIMS = {
    "JXR401": (
        Claim(_outside, since=(0, 12)),
        Claim(_outside, example="decorated_layer_of_a_trunk", since=(0, 12)),
        Claim(_through_jit, since=(0, 12)),
        Claim(_in_a_loop),
        Claim(
            _linen_switch(False),
            example="linen_scan_or_loop_in_setup",
            since=(0, 12),
            needs=("flax",),
        ),
        Claim(
            _linen_switch(True),
            source=example("JXR401", "linen_scan_or_loop_in_setup").fixed,
            since=(0, 12),
            needs=("flax",),
        ),
        *(
            Claim(_trunk(calls, False), example=name, since=(0, 12))
            for calls, name in (
                ("loop", "scan_or_loop_by_a_word"),
                (False, "decorated_outside_the_flag"),
                (False, "flag_the_wrong_way_round"),
            )
        ),
        *(
            Claim(_trunk(calls, True), source=example("JXR401", name).fixed, since=(0, 12))
            for calls, name in (
                ("loop", "scan_or_loop_by_a_word"),
                (False, "flag_the_wrong_way_round"),
            )
        ),
        Claim(_scan, example="scan_unrolled_completely", since=(0, 12)),
        Claim(_fori, example="fori_loop_of_one_step", since=(0, 12)),
        Claim(_linen, example="linen_scan_of_full_length", since=(0, 12), needs=("flax",)),
        Claim(_merged_in_scan, example="default_beyond_the_length", since=(0, 12)),
        Claim(_merged_in_scan, example="unroll_by_the_shape", since=(0, 12)),
        Claim(_unrolled(False), example="unrolled_by_a_switch", since=(0, 12)),
        Claim(
            _unrolled(True), source=example("JXR401", "unrolled_by_a_switch").fixed, since=(0, 12)
        ),
    ),
    "JXR403": (
        Claim(_nested_merged, since=(0, 12), remat3=False),
        Claim(_nested_kept, since=(0, 12), remat3=True),
        Claim(
            _nested_in_line, example="called_by_a_helper_of_the_outer", since=(0, 12), remat3=False
        ),
        Claim(_nested_method, example="method_by_a_flag", since=(0, 12), remat3=False),
        Claim(
            _nested_module,
            source=joined(example("JXR403", "linen_block_in_another_module")),
            since=(0, 12),
            needs=("flax",),
            remat3=False,
        ),
    ),
    "JXR404": (
        *(
            Claim(_same_in_scan, example=name)
            for name in (
                "bad",
                "optional_checkpoint",
                "decorated_step",
                "partial_with_true",
                "scan_as_a_decorator",
            )
        ),
        # XLA:CPU drops the barrier of straight-line code before jaxlib 0.12.
        Claim(_either_arm, example="scan_or_loop_with_true", since=(0, 12)),
    ),
}
