"""Who made each residual of a GPT stack, as a loop, as a scan, and each under jit."""

import os

import pytest

import jaxresid
from fixtures.inspect import gpt

MiB, GiB = 2**20, 2**30


@pytest.mark.integration
class TestGPT:
    """Twelve layers as a loop and as a scan, each also under jit."""

    FORMS = ("loss", "loss_scan", "loss_jit", "loss_scan_jit")

    @pytest.fixture(scope="class")
    def reports(self):
        return {
            form: jaxresid.inspect(getattr(gpt, form))(*getattr(gpt, f"{form}_inputs")())
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
        report = jaxresid.inspect(gpt.big)(*gpt.big_inputs())
        assert report.totals.computed_nbytes > 20 * 2**40
