"""Workloads whose residuals are known from JAX's documentation or by hand, to the byte."""

import linecache
import os
from collections import Counter

import jax
import pytest

import jaxresid
from fixtures.inspect import block, docs, offload, optimizer, stack8
from jaxresid.results import Mark

MiB = 2**20


def report_of(module, name, **options):
    inputs = getattr(module, f"{name}_inputs", None) or module.example_inputs
    return jaxresid.inspect(getattr(module, name), mode="loss", **options)(*inputs())


def computed(report):
    return [r for r in report.residuals if r.origin.kind == "computed"]


def paths(report):
    return sorted(r.origin.path for r in report.residuals if r.origin.kind == "argument")


def made(report):
    """Computed residuals as `primitive[shape]`, in any order."""
    return Counter(f"{r.origin.primitive}{list(r.aval.shape)}" for r in computed(report))


def lines(report):
    """The source lines of computed residuals, checked against the file they name."""
    found = Counter()
    for r in computed(report):
        where = r.origin.location
        assert linecache.getline(os.path.abspath(where.file), where.line).strip() == where.code
        found[os.path.basename(where.file), where.function, where.code] += 1
    return found


def calls(report, function):
    """The lines of `function` on the stacks of computed residuals, by shape."""
    return {
        (r.origin.primitive, r.aval.shape): [
            f.code for f in r.origin.stack if f.function == function
        ]
        for r in computed(report)
    }


def totals(report):
    t = report.totals
    return t.arguments_nbytes, t.computed_nbytes, t.host_nbytes, t.constants_nbytes


class TestThreeLayers:
    ARGUMENTS = ("W1", "W2", "W3", "x")
    ARGUMENTS_NBYTES = (5 * 4 + 6 * 5 + 7 * 6 + 4) * 4

    def test_plain(self):
        report = report_of(docs, "three_layers")
        assert len(report.residuals) == 9
        assert paths(report) == [*self.ARGUMENTS]
        assert made(report) == Counter(["sin[5]", "cos[5]", "sin[6]", "cos[6]", "cos[7]"])
        assert lines(report) == {("docs.py", "g", "return jnp.sin(y)"): 5}
        assert totals(report) == (self.ARGUMENTS_NBYTES, (5 + 5 + 6 + 6 + 7) * 4, 0, 0)
        assert calls(report, "three_layers") == {
            ("sin", (5,)): ["x = g(W1, x)"],
            ("cos", (5,)): ["x = g(W1, x)"],
            ("sin", (6,)): ["x = g(W2, x)"],
            ("cos", (6,)): ["x = g(W2, x)"],
            ("cos", (7,)): ["return g(W3, x)"],
        }

    def test_each_checkpointed(self):
        report = report_of(docs, "three_layers_each")
        assert len(report.residuals) == 6
        assert paths(report) == [*self.ARGUMENTS]
        assert made(report) == Counter(["sin[5]", "sin[6]"])
        assert lines(report) == {("docs.py", "g", "return jnp.sin(y)"): 2}
        assert totals(report) == (self.ARGUMENTS_NBYTES, (5 + 6) * 4, 0, 0)
        assert {r.origin.within for r in computed(report)} == {("remat",)}
        assert calls(report, "three_layers_each") == {
            ("sin", (5,)): ["x = jax.checkpoint(g)(W1, x)"],
            ("sin", (6,)): ["x = jax.checkpoint(g)(W2, x)"],
        }

    def test_dots_saved(self):
        report = report_of(docs, "three_layers_dots")
        assert len(report.residuals) == 7
        assert paths(report) == [*self.ARGUMENTS]
        assert made(report) == Counter(["dot_general[5]", "dot_general[6]", "dot_general[7]"])
        assert lines(report) == {("docs.py", "g", "y = jnp.dot(W, x)"): 3}
        assert totals(report) == (self.ARGUMENTS_NBYTES, (5 + 6 + 7) * 4, 0, 0)

    def test_one_name_saved(self):
        report = report_of(docs, "three_layers_named")
        assert len(report.residuals) == 5
        assert paths(report) == [*self.ARGUMENTS]
        (kept,) = computed(report)
        assert (kept.origin.name, kept.origin.primitive, kept.aval.shape) == ("a", "sin", (5,))
        assert lines(report) == {("docs.py", "g", "return jnp.sin(y)"): 1}
        assert kept.origin.named_at.code == 'x = checkpoint_name(g(W1, x), name="a")'
        assert totals(report) == (self.ARGUMENTS_NBYTES, 5 * 4, 0, 0)


class TestSineChains:
    @pytest.mark.parametrize("n", [1, 8, 16])
    def test_plain(self, n):
        report = jaxresid.inspect(docs.sine_chain(n))(*docs.sines8_inputs())
        assert made(report) == {"cos[]": n}
        assert lines(report) == {("docs.py", "sine_chain.chain", "x = jnp.sin(x)"): n}
        assert totals(report) == (0, 4 * n, 0, 0)
        assert len(report.residuals) == n

    @pytest.mark.parametrize(("n", "sines"), [(2, 0), (4, 0), (8, 1), (16, 2), (32, 3)])
    def test_recursive(self, n, sines):
        """The argument, sines where the chain was cut, and the cosines of the last pair."""
        report = jaxresid.inspect(docs.recursive_sines(n))(*docs.sines8_inputs())
        if n == 2:  # one pair, which nothing checkpoints
            assert made(report) == {"cos[]": 2}
            assert len(report.residuals) == 2
            return
        assert len(report.residuals) == n.bit_length()  # log2(n) + 1
        assert paths(report) == ["x"]
        assert made(report) == Counter({"sin[]": sines, "cos[]": 2})
        assert set(lines(report)) == {
            ("docs.py", "recursive_sines.pair", "return jnp.sin(jnp.sin(x))")
        }
        for r in computed(report):
            assert ("remat" in r.origin.within) == (r.origin.primitive == "sin")


class TestLossOverLayers:
    PARAMS = ("params[0]", "params[1]", "params[2]")

    def test_plain(self):
        report = report_of(docs, "loss")
        assert len(report.residuals) == 9
        assert paths(report) == [*self.PARAMS, "x"]
        assert made(report) == Counter({"sin[4]": 2, "cos[4]": 2, "mul[4]": 1})
        assert lines(report) == {
            ("docs.py", "predict", "x = jnp.sin(jnp.dot(W, x))"): 4,
            ("docs.py", "loss", "return jnp.sum((predict(params, x) - y) ** 2)"): 1,
        }
        assert totals(report) == (3 * 64 + 16, 5 * 16, 0, 0)

    def test_dots_saved(self):
        report = report_of(docs, "loss_dots")
        assert len(report.residuals) == 8
        assert paths(report) == [*self.PARAMS, "x", "y"]
        assert made(report) == {"dot_general[4]": 3}
        assert lines(report) == {
            ("docs.py", "predict", "x = jnp.sin(jnp.dot(W, x))"): 2,
            ("docs.py", "predict", "return jnp.dot(last, x)"): 1,
        }
        assert totals(report) == (3 * 64 + 2 * 16, 3 * 16, 0, 0)

    def test_all_names_but_one_saved(self):
        report = report_of(docs, "loss_names")
        assert len(report.residuals) == 6
        assert paths(report) == [*self.PARAMS, "x", "y"]
        (kept,) = computed(report)
        assert (kept.origin.name, kept.origin.primitive) == ("layer0_output", "sin")
        assert [function for _, function, _ in lines(report)] == ["named_predict"]
        assert totals(report) == (3 * 64 + 2 * 16, 16, 0, 0)


def test_save_offload_recompute():
    report = report_of(docs, "save_offload_recompute")
    assert len(report.residuals) == 3
    assert paths(report) == ["x"]
    kept = {r.origin.name: r for r in computed(report)}
    assert set(kept) == {"y", "z"}
    assert {name: r.aval.memory for name, r in kept.items()} == {"y": "device", "z": "host"}
    assert {r.nbytes for r in report.residuals} == {16}
    assert totals(report) == (16, 16, 16, 0)
    assert {r.origin.primitive for r in kept.values()} == {"sin"}
    assert kept["y"].origin.location.code == 'y = checkpoint_name(jnp.sin(x), name="y")'
    assert kept["z"].origin.location.code == 'z = checkpoint_name(jnp.sin(y), name="z")'
    assert Mark.OFFLOADED in kept["z"].marks
    assert Mark.OFFLOADED not in kept["y"].marks


class TestOffloadedBlock:
    WEIGHTS_NBYTES = 2 * 10 * 256 * 1024 * 4

    def test_plain(self):
        report = report_of(offload, "plain")
        assert len(report.residuals) == 4
        assert paths(report) == ["w1", "w2"]
        by_line = {r.origin.location.code: r for r in computed(report)}
        y = by_line.pop("y = x @ w1")
        (x,) = by_line.values()
        assert (y.nbytes, y.aval.shape) == (10 * MiB, (10, 256, 1024))
        assert (x.nbytes, x.aval.shape) == (2.5 * MiB, (10, 256, 256))
        # Each trip's input is what the trip before made.
        assert x.origin.location.code == "return y @ w2, None"
        assert x.origin.name == "block_input"
        assert Mark.CARRY in x.marks
        assert Mark.CARRY not in y.marks
        assert {r.trips for r in (x, y)} == {10}
        assert {r.origin.within for r in (x, y)} == {("scan ×10",)}
        assert totals(report) == (self.WEIGHTS_NBYTES, 12.5 * MiB, 0, 0)

    def test_input_offloaded(self):
        report = report_of(offload, "offloaded")
        assert len(report.residuals) == 3
        assert paths(report) == ["w1", "w2"]
        (x,) = computed(report)
        assert (x.aval.memory, x.aval.shape, x.trips) == ("host", (10, 256, 256), 10)
        assert (x.origin.name, x.origin.primitive) == ("block_input", "dot_general")
        assert x.origin.within == ("scan ×10", "remat")
        assert {Mark.CARRY, Mark.OFFLOADED} <= set(x.marks)
        assert totals(report) == (self.WEIGHTS_NBYTES, 0, 2.5 * MiB, 0)

    def test_weights_on_host(self, jax_version):
        if jax_version < (0, 7, 2):
            pytest.skip("until 0.7.2 the CPU has no pinned_host memory to put an argument in")
        report = report_of(offload, "weights_on_host")
        assert len(report.residuals) == 3
        memory = {r.origin.path: r.aval.memory for r in report.residuals if r.origin.path}
        assert memory == {"w1": "host", "w2": "host"}
        (x,) = computed(report)
        assert (x.aval.memory, x.origin.name) == ("host", "block_input")
        assert totals(report) == (0, 0, 2.5 * MiB, 0)
        assert report.totals.host_arguments_nbytes == self.WEIGHTS_NBYTES

    @pytest.mark.parametrize("name", ["plain", "offloaded", "weights_on_host"])
    def test_everything_is_read(self, name, jax_version):
        if name == "weights_on_host" and jax_version < (0, 7, 2):
            pytest.skip("until 0.7.2 the CPU has no pinned_host memory to put an argument in")
        report = report_of(offload, name)
        for r in report.residuals:
            assert Mark.UNREAD not in r.marks
            assert any(c.phase == "backward" for c in r.consumers)


class TestOptimizer:
    SQUARE = 7168 * 7168 * 4

    def test_loss(self, one_minus_square):
        report = report_of(optimizer, "loss")
        assert paths(report) == ["params[0]", "params[1]", "params[2]", "params[3]", "x"]
        # Per layer: gelu's own, its operand, the layer's output (for the last one the difference
        # to x) and the doubled weights of the size term.
        squares = 4 * (6 if one_minus_square else 7)
        assert sum(r.nbytes == self.SQUARE for r in computed(report)) == squares
        assert report.totals.arguments_nbytes == 5 * self.SQUARE
        small = report.totals.computed_nbytes - squares * self.SQUARE
        assert 0 <= small <= 16 * 4
        codes = {code for _, _, code in lines(report)}
        assert "x = jax.nn.gelu(x @ w)" in codes
        assert "size = sum(jnp.sqrt(jnp.sum(w**2)) for w in params)" in codes

    def test_step_traces(self):
        pytest.importorskip("optax")
        value, params, _ = jax.eval_shape(optimizer.step, *optimizer.step_inputs(64))
        assert value.shape == ()
        assert [p.shape for p in params] == [(64, 64)] * 4


class TestEightLayers:
    @pytest.mark.parametrize("form", ["scan", "loop"])
    def test_no_checkpoint(self, form, one_minus_square):
        report = report_of(stack8, f"{form}_none")
        # gelu keeps one array of the hidden width less: 8 layers of 2×512×2048 floats.
        assert totals(report)[1] / MiB == (770.65625 if one_minus_square else 834.65625)
        assert totals(report)[2:] == (0, 0)

    @pytest.mark.integration
    @pytest.mark.parametrize(
        ("form", "policy", "mebibytes"),
        [
            ("scan", "dots", 290),
            ("scan", "dots_no_batch", 146),
            ("scan", "nothing", 18),
            ("loop", "dots", 288),
            ("loop", "dots_no_batch", 144),
            ("loop", "nothing", 16),
        ],
    )
    def test_policy(self, form, policy, mebibytes):
        report = report_of(stack8, f"{form}_{policy}")
        assert totals(report)[1:] == (mebibytes * MiB, 0, 0)

    @pytest.mark.parametrize(
        ("policy", "functions"),
        [
            # qkv, scores, mixed and wo; then w1
            ("dots", {"attention": 4, "layer": 1}),
            # scores and mixed have batch dimensions
            ("dots_no_batch", {"attention": 2, "layer": 1}),
            ("nothing", {}),
        ],
    )
    def test_saved_in_scan(self, policy, functions):
        """Of each layer its input and the dots that its backward pass needs; beside them the
        doubled output."""
        report = report_of(stack8, f"scan_{policy}")
        per_layer = [r for r in computed(report) if r.trips == stack8.LAYERS]
        (once,) = (r for r in computed(report) if r.trips == 1)
        assert once.origin.location.code == "return jnp.sum(x**2)"
        assert {r.origin.within for r in per_layer} == {("scan ×8", "remat")}
        (carried,) = (r for r in per_layer if Mark.CARRY in r.marks)
        assert carried.origin.location.function == "layer"
        assert carried.aval.shape == (8, 2, 512, 512)
        dots = [r for r in per_layer if r is not carried]
        assert {r.origin.primitive for r in dots} <= {"dot_general"}
        assert Counter(r.origin.location.function for r in dots) == functions


class TestBlock:
    def test_plain(self, one_minus_square):
        report = report_of(block, "plain", argnums=0)
        wide = [r for r in report.residuals if r.aval.shape == (64, 8192)]
        assert len(wide) == (5 if one_minus_square else 6)
        assert {r.origin.location.code for r in wide} == {"h = jax.nn.gelu(jnp.dot(x, W1))"}
        assert totals(report)[1] == (len(wide) * 8192 + 512) * 64 * 4
        # W1 is needed for the gradient of x alone, which is not asked for.
        assert paths(report) == ["params[1]", "x"]

    def test_checkpointed(self):
        report = report_of(block, "checkpointed", argnums=0)
        assert not [r for r in report.residuals if r.aval.shape == (64, 8192)]
        assert paths(report) == ["params[0]", "params[1]", "x"]
        (error,) = computed(report)
        assert (error.aval.shape, error.origin.primitive) == ((64, 512), "mul")
        assert error.origin.location.function == "checkpointed"
        assert totals(report)[1] == 64 * 512 * 4
