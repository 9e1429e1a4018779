"""Which backward eqns read a residual, and what else is said of it."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from small import codes, dotsin, f32, kept, only, saving_dots, scanned

import jaxresid
from jaxresid.results import Mark

cp = jax.checkpoint_policies


class TestConsumers:
    def test_backward(self):
        def loss(W, x):
            h = jnp.sin(W @ x)
            return jnp.sum(h * h)

        report = jaxresid.inspect(loss)(f32(3, 3), f32(3))
        for r in report.residuals:
            assert {c.phase for c in r.consumers} == {"backward"}
        (cos,) = (r for r in report.residuals if getattr(r.origin, "primitive", "") == "cos")
        assert [(c.primitive, c.location.code) for c in cos.consumers] == [
            ("mul", "h = jnp.sin(W @ x)")
        ]
        weights = next(r for r in report.residuals if r.origin.kind == "argument")
        assert {c.primitive for c in weights.consumers} == {"dot_general"}

    def test_recompute(self):
        def loss(x):
            h = jnp.sin(x)
            return jnp.sum(jax.checkpoint(lambda h: jnp.sin(jnp.sin(h)))(h))

        by_primitive = {r.origin.primitive: r for r in kept(loss, f32(3))}
        h = by_primitive["sin"]
        assert {(c.phase, c.within) for c in h.consumers} == {("recompute", ("remat",))}
        assert {c.primitive for c in h.consumers} == {"sin", "cos"}
        assert {c.phase for c in by_primitive["cos"].consumers} == {"backward"}

    def test_read_by_both(self):
        """What is recomputed from, and read by the transpose itself."""

        def loss(W, x):
            return jnp.sum(jax.checkpoint(dotsin)(W, x))

        report = jaxresid.inspect(loss)(f32(3, 3), f32(3))
        for r in report.residuals:
            assert {c.phase for c in r.consumers} == {"recompute", "backward"}
            assert {c.primitive for c in r.consumers} == {"dot_general"}

    def test_in_a_loop(self):
        r = only(scanned, f32(2))
        assert [(c.primitive, c.within, c.location.code) for c in r.consumers] == [
            ("mul", ("scan ×3",), "c = jnp.sin(c)")
        ]

    def test_of_a_tree_that_is_moved(self):
        """JAX moves a tree in one eqn; each result is the operand beside it."""

        def moved(x, y):
            a, b = jax.device_put((jnp.sin(x), jnp.exp(y)))
            return jnp.sum(a * b)

        def apart(x, y):
            return jnp.sum(jax.device_put(jnp.sin(x)) * jax.device_put(jnp.exp(y)))

        rows = [
            sorted(
                (r.origin.primitive, r.origin.through, [c.primitive for c in r.consumers])
                for r in jaxresid.inspect(fun, argnums=(0, 1))(f32(3), f32(3)).residuals
            )
            for fun in (moved, apart)
        ]
        assert rows[0] == rows[1]

    def test_readers_of_a_tree_that_is_moved(self):
        """The backward pass moves two values in one eqn, and each is read on its own."""

        @jax.custom_vjp
        def f(x, y):
            return x * y

        def backward(kept, ct):
            a, b = jax.device_put(kept)
            return ct * jnp.tanh(b), ct + a

        f.defvjp(lambda x, y: (f(x, y), (jnp.sin(x), jnp.exp(y))), backward)
        found = kept(lambda x, y: jnp.sum(f(x, y)), f32(3), f32(3), argnums=(0, 1))
        readers = {r.origin.primitive: {c.primitive for c in r.consumers} for r in found}
        assert readers == {"sin": {"add"}, "exp": {"tanh"}}

    def test_unread(self):
        """The zeros that relu's derivative selects are made anew by its transpose."""

        def loss(x):
            return jnp.sum(jax.nn.relu(x))

        by_primitive = {r.origin.primitive: r for r in kept(loss, f32(3))}
        zeros = by_primitive["broadcast_in_dim"]
        assert zeros.consumers == ()
        assert {Mark.UNREAD, Mark.FREE} <= set(zeros.marks)
        assert Mark.UNREAD not in by_primitive["gt"].marks


class TestMarks:
    def test_duplicate(self):
        def twice(W, x):
            return saving_dots(W, x) + saving_dots(W, x)

        dots = [r for r in kept(twice, f32(3, 3), f32(3)) if r.origin.primitive == "dot_general"]
        assert [Mark.DUPLICATE in r.marks for r in dots] == [False, True]

    def test_duplicate_under_another_name(self):
        def named(W, x):
            return jnp.cos(checkpoint_name(W @ x, "product"))

        saving_name = jax.checkpoint(named, policy=cp.save_only_these_names("product"))

        def twice(W, x):
            return saving_name(W, x) + saving_dots(W, x)

        dots = [r for r in kept(twice, f32(3, 3), f32(3)) if r.origin.primitive == "dot_general"]
        assert [r.origin.name for r in dots] == ["product", None]
        assert [Mark.DUPLICATE in r.marks for r in dots] == [False, True]

    def test_different_values_are_no_duplicates(self):
        def twice(W, x):
            return saving_dots(W, x) + saving_dots(W.T, x)

        for r in kept(twice, f32(3, 3), f32(3)):
            assert Mark.DUPLICATE not in r.marks

    def test_primal_output(self):
        def exponential(x):
            return jnp.exp(x)

        r = only(exponential, f32(3))
        assert (r.origin.primitive, r.marks) == ("exp", (Mark.PRIMAL_OUTPUT,))

    def test_tanh_output(self, one_minus_square):
        def bounded(x):
            return jnp.tanh(x)

        marks = {r.origin.primitive: r.marks for r in kept(bounded, f32(3))}
        if one_minus_square:
            assert marks == {"one_minus_square": ()}
        else:
            assert marks == {"tanh": (Mark.PRIMAL_OUTPUT,), "sub": ()}

    def test_auxiliary_output(self):
        def loss(x):
            return jnp.sum(jnp.sin(x)), {"hidden": jnp.cos(x)}

        report = jaxresid.inspect(loss, has_aux=True)(f32(3))
        (r,) = report.residuals
        assert r.origin.primitive == "cos"
        assert Mark.PRIMAL_OUTPUT in r.marks

    def test_mask_is_free(self):
        def attend(q):
            mask = jnp.tril(jnp.ones((4, 4), bool))
            return jnp.sum(jax.nn.softmax(jnp.where(mask, q @ q.T, -1e9)) ** 2)

        free = {r.origin.location.code for r in kept(attend, f32(4, 2)) if Mark.FREE in r.marks}
        assert "mask = jnp.tril(jnp.ones((4, 4), bool))" in free
        for r in kept(attend, f32(4, 2)):
            if r.origin.primitive in ("exp", "dot_general", "reduce_sum", "div"):
                assert Mark.FREE not in r.marks

    def test_scalar_of_each_trip_is_not_free(self):
        """Only running the loop again makes it again."""
        r = only(scanned, f32())
        assert r.aval.shape == (3,)
        assert Mark.FREE not in r.marks

    def test_zeros_in_a_loop_are_free(self):
        def loop(x):
            return lax.scan(lambda c, _: (jax.nn.relu(c) * 2, None), x, length=3)[0]

        by_primitive = {r.origin.primitive: r for r in kept(loop, f32(4))}
        assert Mark.FREE not in by_primitive["gt"].marks
        if "broadcast_in_dim" in by_primitive:
            assert Mark.FREE in by_primitive["broadcast_in_dim"].marks

    def test_carry(self):
        def loop(W, x):
            return lax.scan(lambda c, _: (jnp.sin(W @ c), None), x, length=3)[0]

        by_primitive = {r.origin.primitive: r for r in kept(loop, f32(3, 3), f32(3))}
        assert by_primitive["sin"].aval.shape == (3, 3)
        assert Mark.CARRY in by_primitive["sin"].marks
        assert Mark.CARRY not in by_primitive["cos"].marks

    def test_invariant_is_kept_once(self):
        def loop(W, x):
            def body(c, _):
                k = jnp.sin(W)
                return k @ c, None

            return lax.scan(body, x, length=3)[0]

        found = {r.origin.primitive: r for r in kept(loop, f32(3, 3), f32(3)) if r.trips == 1}
        assert set(found) == {"sin", "cos"}
        assert {r.origin.location.code for r in found.values()} == {"k = jnp.sin(W)"}

    def test_invariant_of_a_checkpointed_body_is_kept_once(self):
        def loop(W, x):
            @functools.partial(jax.checkpoint, policy=cp.save_only_these_names("k"))
            def body(c, _):
                k = checkpoint_name(jnp.sin(W), "k")
                return k @ c, None

            return lax.scan(body, x, length=3)[0]

        (k,) = (r for r in kept(loop, f32(3, 3), f32(3)) if r.origin.name == "k")
        assert (k.trips, k.aval.shape) == (1, (3, 3))
        assert k.origin.location.code == 'k = checkpoint_name(jnp.sin(W), "k")'

    def test_carry_of_a_checkpointed_body(self):
        def loop(W, x):
            @jax.checkpoint
            def body(c, _):
                return jnp.sin(W @ c), None

            return lax.scan(body, x, length=3)[0]

        r = only(loop, f32(3, 3), f32(3))
        assert (r.trips, r.marks) == (3, (Mark.CARRY,))
        assert codes(r.origin.stack) == [
            "return lax.scan(body, x, length=3)[0]",
            "return jnp.sin(W @ c), None",
        ]
