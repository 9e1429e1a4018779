"""Who made each residual: line, calls, loops, readers; for a GPT stack and small programs."""

import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jaxresid
from fixtures.inspect import gpt
from jaxresid.model import Mark

MiB, GiB = 2**20, 2**30
cp = jax.checkpoint_policies


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def kept(fun, *args, **options):
    report = jaxresid.inspect(fun, *args, **options)
    return [r for r in report.residuals if r.origin.kind == "computed"]


def only(fun, *args, **options):
    (residual,) = kept(fun, *args, **options)
    return residual


def paths(report):
    return sorted(r.origin.path for r in report.residuals if r.origin.kind == "argument")


def codes(stack):
    return [location.code for location in stack]


class TestGPT:
    """Twelve layers as a loop and as a scan, each also under jit."""

    FORMS = ("loss", "loss_scan", "loss_jit", "loss_scan_jit")

    @pytest.fixture(scope="class")
    def reports(self):
        return {
            form: jaxresid.inspect(getattr(gpt, form), *getattr(gpt, f"{form}_inputs")())
            for form in self.FORMS
        }

    @pytest.mark.parametrize("form", FORMS)
    def test_total(self, reports, form, one_minus_square):
        t = reports[form].totals
        # One array of the hidden width less for each gelu.
        assert f"{t.computed_nbytes / GiB:.2f}" == ("12.38" if one_minus_square else "13.13")
        assert (t.host_nbytes, t.constants_nbytes) == (0, 0)
        # The weights of the products, and x, which the first norm does not keep.
        assert t.arguments_nbytes == 12 * 12 * 1024 * 1024 * 2

    def test_same_bytes_in_every_form(self, reports):
        nbytes = {form: report.totals.computed_nbytes for form, report in reports.items()}
        assert nbytes["loss"] == nbytes["loss_jit"]
        assert nbytes["loss_scan"] == nbytes["loss_scan_jit"]
        # What does not depend on the layer is kept once by a scan, and by a loop in each layer:
        # for each of two variances a factor, its f32 count and whether that is positive.
        invariant = 2 * (8 * 1024 * 2 + 4 + 1)
        once = [r for r in reports["loss_scan"].residuals if r.trips == 1]
        assert sum(r.nbytes for r in once if r.origin.kind == "computed") == invariant
        assert nbytes["loss"] == nbytes["loss_scan"] + 11 * invariant

    @pytest.mark.parametrize(
        ("form", "number"),
        [("loss", 396), ("loss_jit", 396), ("loss_scan", 33), ("loss_scan_jit", 33)],
    )
    def test_computed_count(self, reports, form, number, one_minus_square):
        found = [r for r in reports[form].residuals if r.origin.kind == "computed"]
        per_layer = number // 12 if number > 100 else number
        assert len(found) == number + (0 if one_minus_square else number // per_layer)

    @pytest.mark.parametrize("form", FORMS)
    def test_every_byte_has_a_place(self, reports, form):
        for r in reports[form].residuals:
            if r.origin.kind == "argument":
                assert r.origin.path.startswith(("layers[", "stacked["))
            elif r.origin.kind == "computed":
                where = r.origin.location
                assert where.file.endswith(os.path.join("fixtures", "inspect", "gpt.py"))
                with open(gpt.__file__) as f:
                    assert f.readlines()[where.line - 1].strip() == where.code
                assert where.function in ("norm", "attention", "mlp", "layer")
            else:
                assert r.origin.kind == "literal"

    @pytest.mark.parametrize("form", FORMS)
    def test_no_origin_is_a_container(self, reports, form):
        made_by = {
            r.origin.primitive for r in reports[form].residuals if r.origin.kind == "computed"
        }
        assert not made_by & {"scan", "jit", "pjit", "closed_call", "custom_jvp_call", "remat"}
        assert {"dot_general", "exp", "div", "mul", "rsqrt"} <= made_by

    @pytest.mark.parametrize("form", FORMS)
    def test_largest_lines(self, reports, form, one_minus_square):
        by_code = {}
        for r in reports[form].residuals:
            if r.origin.kind == "computed":
                code = r.origin.location.code
                by_code[code] = by_code.get(code, 0) + r.nbytes
        softmax = by_code["mixed = jax.nn.softmax(scores) @ v"]
        gelu = by_code["hidden = jax.nn.gelu(x @ w1)"]
        # exp and div of 12×8×16×1024×1024 bf16, their sum and its square, and the product.
        assert softmax == (6144 + 2 * 3 + 192) * MiB
        assert gelu == (5 if one_minus_square else 6) * 768 * MiB

    @pytest.mark.parametrize("form", FORMS)
    def test_loops_and_calls(self, reports, form):
        exp = [
            r
            for r in reports[form].residuals
            if r.origin.kind == "computed" and r.origin.primitive == "exp"
        ]
        calls = {
            "loss": (),
            "loss_jit": ("jit loss",),
            "loss_scan": ("scan ×12",),
            "loss_scan_jit": ("jit loss_scan", "scan ×12"),
        }
        assert {r.origin.within for r in exp} == {calls[form]}
        assert [r.trips for r in exp] == ([12] if "scan" in form else [1] * 12)
        for r in exp:
            assert [f.function.rpartition(".")[2] for f in r.origin.stack if "gpt" in f.file] == [
                *(["loss_scan", "<lambda>"] if "scan" in form else ["loss"]),
                "layer",
                "attention",
            ]

    def test_terabytes(self):
        report = jaxresid.inspect(gpt.big, *gpt.big_inputs())
        assert report.totals.computed_nbytes > 20 * 2**40


# The programs. Each is a function of its own, so that its lines say which is which.


def scanned(x):
    def body(c, _):
        c = jnp.sin(c)
        return c, None

    return lax.scan(body, x, length=3)[0]


@jax.jit
def jitted(x):
    return jnp.sin(x)


def dotsin(W, x):
    return jnp.sin(W @ x)


saving_dots = jax.checkpoint(dotsin, policy=cp.dots_saveable)


@jax.custom_vjp
def halved(x):
    return jnp.exp(x) / 2


def halved_fwd(x):
    y = jnp.exp(x)
    return y / 2, jnp.tanh(y)


def halved_bwd(t, g):
    return (t * g,)


halved.defvjp(halved_fwd, halved_bwd)


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


class TestConsumers:
    def test_backward(self):
        def loss(W, x):
            h = jnp.sin(W @ x)
            return jnp.sum(h * h)

        report = jaxresid.inspect(loss, f32(3, 3), f32(3))
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

        report = jaxresid.inspect(loss, f32(3, 3), f32(3))
        for r in report.residuals:
            assert {c.phase for c in r.consumers} == {"recompute", "backward"}
            assert {c.primitive for c in r.consumers} == {"dot_general"}

    def test_in_a_loop(self):
        r = only(scanned, f32(2))
        assert [(c.primitive, c.within, c.location.code) for c in r.consumers] == [
            ("mul", ("scan ×3",), "c = jnp.sin(c)")
        ]

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

        report = jaxresid.inspect(loss, f32(3), has_aux=True)
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


class TestArguments:
    def test_keyword(self):
        def loss(x, *, scale):
            return jnp.sum(x * scale)

        report = jaxresid.inspect(loss, f32(3), scale=f32())
        assert paths(report) == ["scale", "x"]
        assert report.target.differentiated == ("x", "scale")

    @pytest.mark.parametrize(
        ("argnums", "keeps", "differentiated"),
        [(0, ["b"], ("a",)), (-1, ["a"], ("b",)), ((0, 1), ["a", "b"], ("a", "b"))],
    )
    def test_argnums(self, argnums, keeps, differentiated):
        def loss(a, b):
            return jnp.sum(a * b)

        report = jaxresid.inspect(loss, f32(3), f32(3), argnums=argnums)
        assert paths(report) == keeps
        assert report.target.differentiated == differentiated

    def test_integers_are_traced_and_not_differentiated(self):
        def embed(table, ids):
            return jnp.sum(table[ids] ** 2)

        report = jaxresid.inspect(embed, f32(5, 2), i32(3))
        assert report.target.differentiated == ("table",)
        (indices,) = (r for r in report.residuals if r.aval.dtype == "int32")
        assert (indices.aval.shape, indices.origin.kind) == ((3, 1), "computed")
        assert indices.origin.location.code == "return jnp.sum(table[ids] ** 2)"

    def test_python_float_is_differentiated(self):
        def loss(x, scale):
            return jnp.sum(jnp.sin(x) * scale)

        report = jaxresid.inspect(loss, f32(3), 2.0)
        assert report.target.differentiated == ("x", "scale")
        # A weakly typed scalar: cast to the strong type that the product needs.
        (scale,) = (r for r in report.residuals if getattr(r.origin, "path", None) == "scale")
        assert (scale.aval.shape, scale.nbytes) == ((), 4)
        assert report.warnings == ()

    def test_python_float_used_as_a_number(self):
        def loss(x, power):
            return jnp.sum(x) if power > 1 else jnp.sum(x**2)

        report = jaxresid.inspect(loss, f32(3), 0.5)
        assert report.target.differentiated == ("x",)
        assert report.warnings == ("held static, since the function needs its value: power",)

    def test_pytrees_with_static_leaves(self):
        def apply(p):
            assert p["mode"] == "train"
            assert p["nothing"] is None
            return jnp.sum(p["act"](p["w"]) * p["layers"][1]["b"])

        p = {
            "w": f32(3),
            "act": jnp.sin,
            "mode": "train",
            "nothing": None,
            "layers": [None, {"b": f32(3)}],
        }
        report = jaxresid.inspect(apply, p)
        assert report.target.differentiated == ("p['layers'][1]['b']", "p['w']")
        assert paths(report) == ["p['layers'][1]['b']"]

    def test_static_leaves_stay_with_concrete_arrays(self):
        def apply(x, n, flag):
            return jnp.sum(x**n) if flag else jnp.sum(x)

        r = only(apply, np.ones(3, np.float32), 3, True)
        assert r.origin.location.code.startswith("return jnp.sum(x**n)")

    @pytest.mark.parametrize("array", [np.arange(3, dtype=np.float32), jnp.arange(3.0)])
    def test_constant(self, array):
        def loss(x):
            return jnp.sum(x * array)

        report = jaxresid.inspect(loss, f32(3))
        (r,) = report.residuals
        assert (r.origin.kind, r.nbytes) == ("constant", 12)
        assert report.totals.constants_nbytes == 12

    def test_literal(self):
        def loss(x):
            return jnp.sum(jnp.sin(x) * 2.5)

        report = jaxresid.inspect(loss, f32(3))
        assert [r.origin.value for r in report.residuals if r.origin.kind == "literal"] == ["2.5"]
        t = report.totals
        assert (t.arguments_nbytes, t.computed_nbytes, t.host_nbytes, t.constants_nbytes) == (
            *(0, 12, 0, 0),
        )

    def test_typed_key(self):
        def dropped(x, key):
            return jnp.sum(jnp.sin(x * jax.random.bernoulli(key, 0.5, (3,))))

        key = jax.eval_shape(lambda: jax.random.key(0))
        report = jaxresid.inspect(jax.checkpoint(dropped), f32(3), key)
        assert paths(report) == ["key", "x"]
        (r,) = (r for r in report.residuals if r.origin.path == "key")
        assert (r.aval.dtype, r.aval.shape, r.nbytes) == ("key<fry>", (), 8)
        assert report.target.differentiated == ("x",)

    def test_raw_key(self):
        def noisy(x, key):
            return jnp.sum(x * jax.random.normal(key, (3,)))

        r = only(noisy, f32(3), jax.ShapeDtypeStruct((2,), jnp.uint32))
        assert r.origin.location.code == "return jnp.sum(x * jax.random.normal(key, (3,)))"

    def test_partial(self):
        def loss(scale, x):
            return jnp.sum(jnp.sin(x) * scale)

        report = jaxresid.inspect(functools.partial(loss, 2.0), f32(3))
        assert report.target.differentiated == ("x",)
        assert [r.origin.kind for r in report.residuals if r.nbytes > 4] == ["computed"]

    def test_complex(self):
        def loss(x):
            return jnp.abs(jnp.sum(x * x))

        report = jaxresid.inspect(loss, jax.ShapeDtypeStruct((3,), jnp.complex64))
        assert paths(report) == ["x"]
        assert report.totals.arguments_nbytes == 24

    def test_integer_output(self):
        def loss(x):
            return jnp.sum(jnp.sin(x)), jnp.argmax(x)

        assert only(loss, f32(3)).origin.primitive == "cos"

    def test_while_on_a_counter(self):
        def loss(x, n):
            k = lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)
            return jnp.sum(jnp.sin(x) * k)

        found = {r.origin.primitive: r for r in kept(loss, f32(3), i32())}
        assert set(found) == {"cos", "add"}
        assert found["add"].origin.within == ("while",)
        assert found["add"].nbytes == 4


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
    (kept,) = jaxresid.inspect(fun, jnp.ones(3)).residuals
    assert kept.origin.within == within


def hoisted(x):
    def body(c, _):
        return c * jnp.tanh(x), None  # the same in every trip

    return lax.scan(body, x, length=3)[0].sum()


def test_what_is_moved_out_of_a_scan_keeps_its_stack():
    report = jaxresid.inspect(hoisted, jnp.ones(3))
    kept = next(r for r in report.residuals if r.origin.primitive == "tanh")
    assert [f.function for f in kept.origin.stack] == ["hoisted", "hoisted.body"]


def passed_on(x):
    y = lax.cond(x.sum() > 0, jnp.exp, lambda x: x, x)
    return (y * y).sum()


def test_a_branch_that_computes_says_more_than_one_that_hands_on():
    origins = [r.origin for r in jaxresid.inspect(passed_on, jnp.ones(3)).residuals]
    assert [o.primitive for o in origins if "cond" in getattr(o, "within", ())].count("exp") >= 1
    assert not any(o.kind == "argument" for o in origins)
