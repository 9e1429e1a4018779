"""What a residual stands in, and the stack of calls that led to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from small import codes, dotsin, f32, halved, jitted, kept, only, saving_dots, scanned

import jaxresid

cp = jax.checkpoint_policies


class TestWithin:
    def test_scan(self):
        r = only(scanned, f32(2))
        assert (r.origin.primitive, r.origin.within, r.trips) == ("cos", ("scan ×3",), 3)
        assert r.aval.shape == (3, 2)
        assert r.origin.location.code == "c = jnp.sin(c)"
        assert codes(r.origin.stack) == [
            "return lax.scan(body, x, length=3)[0]",
            "c = jnp.sin(c)",
        ]

    def test_jit(self):
        def calls(x):
            return jitted(x)

        r = only(calls, f32(2))
        assert (r.origin.primitive, r.origin.within, r.trips) == ("cos", ("jit jitted",), 1)
        assert codes(r.origin.stack) == ["return jitted(x)", "return jnp.sin(x)"]

    def test_scan_in_jit(self):
        assert only(jax.jit(scanned), f32(2)).origin.within == ("jit scanned", "scan ×3")

    def test_jit_in_scan(self):
        def calls(x):
            return lax.scan(lambda c, _: (jitted(c), None), x, length=5)[0]

        r = only(calls, f32(2))
        assert (r.origin.within, r.trips) == (("scan ×5", "jit jitted"), 5)
        assert codes(r.origin.stack)[-1] == "return jnp.sin(x)"

    def test_nested_scans(self):
        def outer(x):
            return lax.scan(lambda c, _: (scanned(c) * c, None), x, length=4)[0]

        found = {r.aval.shape: r for r in kept(outer, f32(2)) if r.origin.primitive == "cos"}
        r = found[4, 3, 2]
        assert (r.origin.within, r.trips) == (("scan ×4", "scan ×3"), 12)
        assert r.origin.location.code == "c = jnp.sin(c)"
        assert codes(r.origin.stack)[-2:] == [
            "return lax.scan(body, x, length=3)[0]",
            "c = jnp.sin(c)",
        ]

    def test_cond(self):
        def sine(x):
            return jnp.sin(x)

        def nothing(x):
            return x

        def branches(p, x):
            return lax.cond(p, sine, nothing, x)

        index, cos = kept(branches, jax.ShapeDtypeStruct((), bool), f32(2))
        assert (index.aval.dtype, index.origin.path) == ("int32", "p")
        # The other branch fills its place with zeros.
        assert (cos.origin.primitive, cos.origin.within) == ("cos", ("cond",))
        assert codes(cos.origin.stack) == [
            "return lax.cond(p, sine, nothing, x)",
            "return jnp.sin(x)",
        ]

    def test_cond_shares_what_branches_keep(self):
        """JAX keeps one array for both: the first branch that makes it is its origin."""

        def cube(x):
            return x**3

        def sine(x):
            return jnp.sin(x)

        def branches(p, x):
            return lax.cond(p, sine, cube, x)

        _, shared = kept(branches, jax.ShapeDtypeStruct((), bool), f32(2))
        assert shared.origin.location.code == "return x**3"
        assert {c.location.code for c in shared.consumers} == {"return x**3", "return jnp.sin(x)"}

    def test_remat(self):
        assert only(saving_dots, f32(3, 3), f32(3)).origin.within == ("remat",)

    def test_remat_in_scan(self):
        def loop(W, x):
            return lax.scan(lambda c, _: (saving_dots(W, c), None), x, length=3)[0]

        found = kept(loop, f32(3, 3), f32(3))
        assert {r.origin.within for r in found} == {("scan ×3", "remat")}
        assert {r.origin.primitive for r in found} == {"dot_general", "sin"}

    def test_scan_in_remat(self):
        def loop(W, x):
            def body(c, _):
                return checkpoint_name(jnp.sin(W @ c), "h"), None

            return lax.scan(body, x, length=3)[0]

        policy = cp.save_only_these_names("h")
        r = only(jax.checkpoint(loop, policy=policy), f32(3, 3), f32(3))
        assert r.origin.within == ("remat", "scan ×3")
        assert (r.origin.name, r.origin.primitive, r.trips) == ("h", "sin", 3)

    def test_custom_vjp(self):
        def calls(x):
            return halved(x)

        r = only(calls, f32(2))
        assert (r.origin.primitive, r.origin.within) == ("tanh", ("custom_vjp",))
        assert r.origin.location.code == "return y / 2, jnp.tanh(y)"
        assert codes(r.origin.stack) == ["return halved(x)", "return y / 2, jnp.tanh(y)"]

    def test_custom_vjp_in_scan(self):
        def loop(x):
            return lax.scan(lambda c, _: (halved(c), None), x, length=3)[0]

        r = only(loop, f32(2))
        assert (r.origin.primitive, r.trips) == ("tanh", 3)
        assert r.origin.within == ("scan ×3", "custom_vjp")
        # JAX records the line of the call for all that the forward rule does in a traced body.
        assert "halved(c)" in r.origin.location.code

    def test_vmap(self):
        def batched(x):
            return jax.vmap(jnp.sin)(x)

        r = only(batched, f32(4, 2))
        assert (r.origin.within, r.aval.shape) == (("vmap",), (4, 2))

    def test_vmap_of_scan(self):
        r = only(jax.vmap(scanned), f32(4, 2))
        assert (r.origin.within, r.trips) == (("vmap", "scan ×3"), 3)

    def test_shard_map(self):
        mesh = jax.sharding.Mesh(jax.devices()[:1], "d")
        spec = jax.sharding.PartitionSpec("d")

        def sharded(x):
            return jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)(x)

        r = only(sharded, f32(4))
        assert (r.origin.primitive, r.origin.within) == ("cos", ("shard_map",))
        assert r.origin.location.code.startswith("return jax.shard_map(")

    def test_named_scope(self):
        def scoped(x):
            with jax.named_scope("trunk"), jax.named_scope("attention"):
                return jnp.sin(x)

        assert only(scoped, f32(2)).origin.scope == "trunk/attention"


class TestStack:
    def test_one_checkpoint_called_at_two_lines(self):
        def calls(W, x):
            y = saving_dots(W, x)
            z = y * 3
            return saving_dots(W, z)

        first, second = (
            r for r in kept(calls, f32(3, 3), f32(3)) if r.origin.primitive == "dot_general"
        )
        assert codes(first.origin.stack) == ["y = saving_dots(W, x)", "return jnp.sin(W @ x)"]
        assert codes(second.origin.stack) == ["return saving_dots(W, z)", "return jnp.sin(W @ x)"]

    def test_checkpoint_called_before_by_another(self):
        fresh = jax.checkpoint(dotsin, policy=cp.dots_saveable)

        def earlier(W, x):
            return fresh(W, x) + 1

        def later(W, x):
            return 2 * fresh(W, x)

        kept(earlier, f32(3, 3), f32(3))
        (r,) = (r for r in kept(later, f32(3, 3), f32(3)))
        assert codes(r.origin.stack) == ["return 2 * fresh(W, x)", "return jnp.sin(W @ x)"]

    def test_checkpoint_called_at_two_lines_of_a_loop(self):
        def loop(W, x):
            def body(c, _):
                c = saving_dots(W, c)
                d = saving_dots(W, c)
                return d, None

            return lax.scan(body, x, length=3)[0]

        dots = [
            codes(r.origin.stack)
            for r in kept(loop, f32(3, 3), f32(3))
            if r.origin.primitive == "dot_general"
        ]
        call = "return lax.scan(body, x, length=3)[0]"
        assert sorted(dots) == [
            [call, "c = saving_dots(W, c)", "return jnp.sin(W @ x)"],
            [call, "d = saving_dots(W, c)", "return jnp.sin(W @ x)"],
        ]

    def test_nested_checkpoints(self):
        inner = jax.checkpoint(dotsin, policy=cp.dots_saveable)

        def block(W, x):
            y = inner(W, x)
            return inner(W, y)

        outer = jax.checkpoint(block, policy=cp.dots_saveable)

        def calls(W, x):
            return outer(W, x)

        dots = [
            codes(r.origin.stack)
            for r in kept(calls, f32(3, 3), f32(3))
            if r.origin.primitive == "dot_general"
        ]
        assert sorted(dots) == [
            ["return outer(W, x)", "return inner(W, y)", "return jnp.sin(W @ x)"],
            ["return outer(W, x)", "y = inner(W, x)", "return jnp.sin(W @ x)"],
        ]

    def test_one_jit_called_at_two_lines(self):
        def calls(x):
            y = jitted(x)
            return jitted(y)

        stacks = [codes(r.origin.stack) for r in kept(calls, f32(5))]
        assert sorted(stacks) == [
            ["return jitted(y)", "return jnp.sin(x)"],
            ["y = jitted(x)", "return jnp.sin(x)"],
        ]

    def test_jit_called_before_by_another(self):
        def earlier(x):
            return jitted(x)

        def later(x):
            return 3 * jitted(x)

        kept(earlier, f32(7))
        (r,) = (r for r in kept(later, f32(7)) if r.origin.primitive == "cos")
        assert codes(r.origin.stack) == ["return 3 * jitted(x)", "return jnp.sin(x)"]

    def test_jit_run_before(self):
        run = jax.jit(lambda x: jnp.sin(x) * 2)
        run(np.ones(9, np.float32))

        def later(x):
            return 3 * run(x)

        (r,) = (r for r in kept(later, f32(9)) if r.origin.primitive == "cos")
        assert codes(r.origin.stack)[0] == "return 3 * run(x)"
        assert r.origin.location.code == "run = jax.jit(lambda x: jnp.sin(x) * 2)"

    def test_library_call(self):
        def calls(x):
            return jax.nn.gelu(x)

        r = kept(calls, f32(3))[0]
        assert r.origin.location.code == "return jax.nn.gelu(x)"
        assert r.origin.library.function.endswith("gelu")


def mapped_checkpoint(x):
    layer = jax.checkpoint(jnp.sin, policy=jax.checkpoint_policies.everything_saveable)
    return jax.vmap(layer)(x).sum()


def checkpointed_map(x):
    layer = jax.checkpoint(jax.vmap(jnp.sin), policy=jax.checkpoint_policies.everything_saveable)
    return layer(x).sum()


@pytest.mark.parametrize(
    ("fun", "within"),
    [(mapped_checkpoint, ("vmap", "remat")), (checkpointed_map, ("remat", "vmap"))],
)
def test_map_and_checkpoint_stand_in_their_order(fun, within):
    assert only(fun, f32(3)).origin.within == within


def hoisted(x):
    def body(c, _):
        return c * jnp.tanh(x), None  # the same in every trip

    return lax.scan(body, x, length=3)[0].sum()


def test_what_is_moved_out_of_a_scan_keeps_its_stack():
    report = jaxresid.inspect(hoisted)(jnp.ones(3))
    kept = next(r for r in report.residuals if r.origin.primitive == "tanh")
    assert [f.function for f in kept.origin.stack] == ["hoisted", "hoisted.body"]


def passed_on(x):
    y = lax.cond(x.sum() > 0, jnp.exp, lambda x: x, x)
    return (y * y).sum()


def test_a_branch_that_computes_says_more_than_one_that_hands_on():
    origins = [r.origin for r in jaxresid.inspect(passed_on)(jnp.ones(3)).residuals]
    assert [o.primitive for o in origins if "cond" in getattr(o, "within", ())].count("exp") >= 1
    assert not any(o.kind == "argument" for o in origins)
