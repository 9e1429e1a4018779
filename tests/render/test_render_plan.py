"""Plans as text, and `jaxresid plan`, on values made by hand: whole outputs, no jax."""

import dataclasses
import json

import pytest

from jaxresid.base.errors import JaxresidError
from jaxresid.base.text.units import format_bytes
from jaxresid.cli.main import run
from jaxresid.render.tables.floor import choices_text
from jaxresid.render.tables.plan import (
    figure_parts,
    part_texts,
    peak_rows,
    render_plan,
    search_text,
    site_parts,
    value_text,
    verdict_text,
)
from jaxresid.results import (
    Floor,
    PlannedValue,
    TriedPlace,
)
from tests.render.made_by_hand import (
    CONFIRMED,
    GIB,
    NO_FIT,
    PLAN,
    SITES,
    printed,
)
from tests.stages import without_stages

# A plan as text.


def test_a_plan():
    text = printed(render_plan(PLAN))
    assert text.startswith(
        """\
gpt.py:loss  on tpu:v5p  with its gradient
fits 8.00 GiB: peak about 7.50 GiB (6.80 to 7.90), for 13.8% more FLOPs
14.00 GiB  without any checkpoint, 6.00 GiB too much
 9.00 GiB  as it is written, 1.00 GiB too much
 7.50 GiB  with this plan, 512.00 MiB to spare
 2.00 GiB  the lowest found, 6.00 GiB to spare
kept 5.00 GiB · recompute 1.20 TFLOP (13.8%)
  time est. ×1.11 on tpu:v5p, not checked

no checkpoint can remove 1.62 GiB
  1.00 GiB  differentiated arguments: params
512.00 MiB  gradients: params
128.00 MiB  batch, until the update
not in this function, and on top of it in training: the optimizer's state and
its update

what else lowers it, cheapest first  the peak of this plan with each
4.00 GiB  params in bfloat16: 3.50 GiB less, fits
5.00 GiB  x split over 8 devices: 2.50 GiB less

3 places  2 to change
change  layer  model.py:49  loop body  ×48 trips
  checkpoint, policy save_only_these_names('qkv', 'mix', 'ctx')
    save       3.00 GiB  'qkv': name the output of m.py:42 layer  x @ w
    save       1.00 GiB  'mix': name the output of m.py:50-53 layer  f( x, y )
    offload  512.00 MiB  'ctx', named in the code
change  block  called  ×24 calls, 48 trips
  calls 1-10: checkpoint without a policy: everything is recomputed
  call 11: checkpoint, policy dots_saveable
  calls 12-24: no checkpoint
leave  head  model.py:80  already checkpointed
  checkpoint, policy dots_saveable

code to write
jax.lax.scan(jax.checkpoint(layer, policy=keep("qkv", "mix", "ctx")), x, ws)  # model.py:49
block = jax.checkpoint(block) if i < 10 else block

jax 0.12.0 · tpu:v5p: 95.00 GiB per device; as asked
differentiated: x, stacked (2 leaves)
Verified: tracing this code gives these figures.
Proven: nothing cheaper among the choices tried fits (34 variants traced).
Tried at model.py:49 (layer): no policy, dots_saveable, all 30 selections of
values; at block: 5 policies.
The time was not checked for tpu:v5p.
No interval: too few programs were compiled to say how far off this estimate is.
"""
    )


def test_a_plan_that_is_not_verified():
    doubted = dataclasses.replace(PLAN, verified=False, doubt="its code cannot be traced here: x")
    text = printed(render_plan(doubted))
    words = " ".join(text.split())
    assert "fits 8.00 GiB, not verified: peak about 7.50 GiB (6.80 to 7.90), for 13.8%" in words
    assert "\nNot verified: its code cannot be traced here: x\nProven: " in text
    assert "\nunverified code\n" in text
    assert "not written" not in text and "Verified" not in text


def test_a_plan_that_cannot_be_written():
    reasons = ("m.py:42 `h` is no function: name it by hand", "m.py:50: [b] is in a notebook")
    unwritten = dataclasses.replace(
        PLAN, code=(), unwritten=reasons, verified=False, doubt=reasons[0]
    )
    text = printed(render_plan(unwritten))
    assert verdict_text(unwritten).startswith("fits 8.00 GiB, not verified: peak about ")
    assert f"\n\nnot written\n{reasons[0]}\n{reasons[1]}\n\n" in text
    assert f"\nNot verified: {reasons[0]}\n" in text
    assert "code to write" not in text
    # What can be written stands before what cannot.
    some = printed(render_plan(dataclasses.replace(unwritten, code=PLAN.code[1:])))
    assert f"code to write\n{PLAN.code[1]}\n\nnot written\n{reasons[0]}\n" in some


def test_a_plan_in_its_width():
    for width in (50, 64, 80, 120):
        text = printed(render_plan(dataclasses.replace(PLAN, code=())), width)
        assert max(map(len, text.splitlines())) <= width


def test_a_plan_that_nothing_fits():
    assert verdict_text(NO_FIT) == (
        "nothing fits 1.00 GiB: the lowest peak found is about 2.00 GiB (1.80 to 2.40),"
        " 1.00 GiB too much"
    )
    text = printed(render_plan(NO_FIT))
    assert "2 to change for the lowest peak\n" in text and "with this plan" not in text
    assert "what else lowers it, cheapest first  the lowest peak with each\n" in text
    assert "What may help" not in text


def test_what_lowers_the_floor_starts_from_the_estimate_where_the_peak_is_that_of_xla():
    words = " ".join(printed(render_plan(CONFIRMED)).split())
    estimate = format_bytes(CONFIRMED.estimate_nbytes)
    assert f"the peak of this plan with each, estimated: {estimate} without 4.00 GiB" in words


def test_what_may_help_where_nothing_else_was_traced():
    bare = dataclasses.replace(NO_FIT, floor=Floor())
    text = printed(render_plan(bare))
    assert "--offload, which moves values to the host, a smaller batch" in text
    assert "no checkpoint can remove" not in text
    assert "--offload" not in printed(render_plan(dataclasses.replace(bare, offload=True)))


def test_no_checkpoint_helps_where_arguments_and_outputs_are_more_than_the_budget():
    assert NO_FIT.is_out_of_reach and NO_FIT.floor.held_nbytes == GIB + GIB // 2
    text = printed(render_plan(NO_FIT))
    assert "no checkpoint can remove 1.62 GiB, which is more than 1.00 GiB\n" in text
    words = " ".join(text.split())
    assert (
        "Proven: no checkpoint makes it fit, as arguments and outputs alone take 1.50 GiB." in words
    )
    # What is there until the update alone is an estimate, and proves nothing.
    late = dataclasses.replace(NO_FIT, budget_nbytes=int(1.55 * GIB))
    assert not late.is_out_of_reach
    assert "roven" not in printed(render_plan(dataclasses.replace(late, proven=False)))
    # XLA's figure is not argued with.
    asked = dataclasses.replace(NO_FIT, peak_nbytes=GIB, confirmed=True)
    assert not asked.is_out_of_reach


def test_what_was_tried_at_each_place():
    assert choices_text(dataclasses.replace(PLAN, choices=())) == (
        "No place for a checkpoint was found, so none was tried."
    )
    some = TriedPlace("f", (), 2, 5), TriedPlace("g", ("no policy",), 3)
    assert choices_text(dataclasses.replace(PLAN, choices=some * 2)) == (
        "Tried at f: 2 of 5 selections of values; at g: no policy, 3 selections of values;"
        " at f: 2 of 5 selections of values; and at 1 more place."
    )


def test_a_plan_that_was_interrupted():
    stopped = dataclasses.replace(PLAN, interrupted=True, proven=False)
    assert search_text(stopped) == (
        "Stopped by Ctrl-C after 34 variants traced: something cheaper may fit."
    )
    high = dataclasses.replace(stopped, budget_nbytes=2 * GIB)
    assert search_text(high).endswith(": something may fit.")


def test_a_plan_that_xla_confirmed():
    text = printed(render_plan(CONFIRMED))
    assert "\nfits 8.00 GiB: peak 7.50 GiB by XLA, for 13.8% more FLOPs\n" in text
    assert " 7.50 GiB  with this plan, 512.00 MiB to spare, by XLA\n" in text
    assert " 9.00 GiB  as it is written, 1.00 GiB too much\n" in text
    assert "Verified: tracing this code gives the figures of what XLA compiled.\n" in text
    words = " ".join(text.split())
    assert "fits (34 variants traced, 3 compiled); not all combinations of them were" in words
    assert "No interval" in text  # the other peaks are estimates
    figures = ("peak_nbytes", "lowest_nbytes", "written_nbytes", "plain_nbytes")
    text = printed(render_plan(dataclasses.replace(CONFIRMED, by_xla=figures)))
    assert "No interval" not in text and text.count("by XLA") == 1
    rejected = dataclasses.replace(
        CONFIRMED,
        budget_nbytes=GIB,
        answer="does not fit",
        peak_nbytes=2 * GIB,
        by_xla=("peak_nbytes", "lowest_nbytes"),
    )
    assert verdict_text(rejected) == (
        "nothing fits 1.00 GiB: the lowest peak found is 2.00 GiB by XLA, 1.00 GiB too much"
    )


def test_a_plan_that_is_too_close_to_tell():
    close = dataclasses.replace(
        PLAN,
        budget_nbytes=int(7.6 * GIB),
        answer="too close",
        lowest_nbytes=PLAN.peak_nbytes,
    )
    assert verdict_text(close) == (
        "too close to 7.60 GiB: peak about 7.50 GiB (6.80 to 7.90), for 13.8% more FLOPs;"
        " --compile decides"
    )
    assert "with this plan" in printed(render_plan(close))
    low = dataclasses.replace(close, budget_nbytes=7 * GIB)
    assert verdict_text(low) == (
        "too close to 7.00 GiB: the lowest peak found is about 7.50 GiB (6.80 to 7.90);"
        " --compile decides"
    )
    assert "what else lowers it" in printed(render_plan(low))
    # 7.60 GiB * 7.50 / 7.90, rounded down.
    lower = dataclasses.replace(close, lowest_nbytes=7 * GIB)
    assert verdict_text(lower).endswith(
        "; --compile decides, or plan with --budget 7.2GiB for a range below 7.60 GiB"
    )
    highest = dataclasses.replace(close, lowest_nbytes=int(7.25 * GIB))
    assert verdict_text(highest).endswith("; --compile decides")
    late = dataclasses.replace(close, unconfirmed=("layer: dots_saveable",))
    assert verdict_text(late).endswith("; XLA did not decide in time")


def test_peaks_that_no_compiler_said_are_left_out():
    without = dataclasses.replace(CONFIRMED, written_nbytes=None, plain_nbytes=None)
    assert [nbytes for nbytes, _ in peak_rows(without)] == [int(7.5 * GIB), 2 * GIB]


def test_a_plan_that_changes_nothing():
    plan = dataclasses.replace(
        PLAN,
        sites=SITES[2:],
        code=(),
        written_nbytes=PLAN.peak_nbytes,
        lowest_nbytes=PLAN.peak_nbytes,
        recompute_flops=0,
        recompute_fraction=0.0,
    )
    assert verdict_text(plan) == (
        "fits 8.00 GiB as it is written: peak about 7.50 GiB (6.80 to 7.90),"
        " with nothing recomputed"
    )
    assert peak_rows(plan)[1] == (
        PLAN.peak_nbytes,
        "as it is written and with this plan and the lowest found, 512.00 MiB to spare",
    )
    text = printed(render_plan(plan))
    assert "1 place  nothing to change\n" in text and "code to write" not in text
    assert (
        "\nThe figures are those of the code as it is written.\n" in text and "erified" not in text
    )
    assert "\nnothing to change\n" in printed(render_plan(dataclasses.replace(plan, sites=())))


def test_figures_of_a_plan():
    offloading = dataclasses.replace(
        PLAN, offload=True, host_nbytes=GIB, uncosted=("f",), time_fraction=None
    )
    assert figure_parts(offloading) == (
        "kept 5.00 GiB",
        "host 1.00 GiB",
        "recompute >= 1.20 TFLOP (about 13.8%)",
    )
    assert "No FLOPs known for f" in printed(render_plan(offloading))


def test_a_search_that_did_not_try_everything():
    cut = dataclasses.replace(PLAN, proven=False, tried=1)
    assert search_text(cut) == (
        "Nothing cheaper among the choices tried fits (1 variant traced); not all combinations of"
        " them were, so something cheaper may fit."
    )
    none = dataclasses.replace(NO_FIT, proven=False, budget_nbytes=int(1.8 * GIB))
    assert search_text(none) == (
        "Nothing among the choices tried fits (34 variants traced); not all combinations of them"
        " were, so something may fit."
    )
    every = dataclasses.replace(none, proven=True)
    assert search_text(every) == (
        "Nothing among the choices tried fits: each was traced (34 variants traced)."
    )
    free = dataclasses.replace(PLAN, recompute_flops=0)
    assert search_text(free) == "Nothing is cheaper: nothing is recomputed (34 variants traced)."


def test_parts_of_a_plan():
    assert site_parts(SITES[1]) == ("block", "called", "×24 calls, 48 trips")
    assert [text for text, _ in part_texts(SITES[1])][1] == (
        "call 11: checkpoint, policy dots_saveable"
    )
    twice = dataclasses.replace(SITES[1], trips=24)
    assert site_parts(twice)[-1] == "×24 calls"
    assert value_text(PlannedValue("n", "save", 1)) == "'n', named in the code"


# The command line, as far as nothing is traced.


MODEL = """
import jax, jax.numpy as jnp

def loss(x):
    return jnp.sin(jnp.sin(x)).sum()

def loss_inputs():
    return (jnp.ones(3),)
"""


@pytest.fixture
def planning(tmp_path, monkeypatch):
    """`jaxresid plan` with a plan, an edit and its verification that are given."""
    # Loaded first: what it imports while `jointly_drafted` is replaced, it would keep.
    import jaxresid.advice.plan.joint.api  # noqa: F401
    from jaxresid.advice.plan.joint import configurations
    from jaxresid.advice.plan.joint import joint as planning_module
    from jaxresid.advice.plan.source import writing
    from jaxresid.cli.commands import plan as command_module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "planned_model.py"
    file.write_text(MODEL)
    done = []
    new = MODEL.replace("jnp.sin(jnp", "jax.numpy.sin(jnp").encode()
    found = writing.FileEdit(file, file.name, MODEL.encode(), new)

    def plan_with(
        plan,
        *options,
        edits=(found,),
        error=None,
        unavailable="no compiler here",
        budget=("--budget", "1GiB"),
    ):
        def rehearsal(subject, question):
            assert subject.fun is question.fun
            return subject

        def retraced(check, options, microbatches):
            assert microbatches == 1
            return check, options

        def drafted(
            found,
            place,
            budget_nbytes,
            *,
            progress,
            checks,
            compiles,
            keeps_interrupted,
            words,
            **given,
        ):
            assert keeps_interrupted
            # What is printed to be asked next is asked of the same inputs and the same budget.
            offload = ("--offload",) * given["offload"]
            assert words[0] == "planned_model.py:loss"
            assert words[len(words) - len(budget) - len(offload) :] == (*budget, *offload)
            assert ("--on" in words) == ("--on" in options)
            (only,) = found.each()
            check = checks(found.check(only), only)
            # Whatever is printed of a plan was traced, in this process or another.
            assert check[0] is found.subject(only) and check[1].target == "planned_model.py:loss"
            done.append((budget_nbytes, given))
            if compiles is not None:
                done.append((compiles.place.text, compiles.left_s))
            progress("searching")
            return plan, edits

        def verify(*given):
            assert given[:2] == (plan, edits) and given[2].target == "planned_model.py:loss"
            done.append("verified")
            if error is not None:
                raise error

        monkeypatch.setattr(configurations, "in_process_check", rehearsal)
        monkeypatch.setattr(planning_module, "jointly_drafted", drafted)
        monkeypatch.setattr(command_module, "with_second_process", retraced)
        monkeypatch.setattr(command_module, "verify", verify)
        monkeypatch.setattr(command_module, "why_unavailable", lambda place: unavailable)
        done.clear()
        code = run(["plan", "planned_model.py:loss", *budget, *options])
        return code, done, file.read_text()

    return plan_with


ASKED = (GIB, {"aim": None, "offload": False, "lifetimes": False})


def test_plan_exits_by_whether_it_fits(planning, capsys):
    code, done, text = planning(PLAN, "--offload")
    assert (code, done, text) == (
        0,
        [(GIB, {"aim": None, "offload": True, "lifetimes": False})],
        MODEL,
    )
    assert "fits 8.00 GiB" in capsys.readouterr().out
    code, done, text = planning(NO_FIT, "-f", "json")
    value = json.loads(capsys.readouterr().out)
    assert code == 1 and value["fits"] is False and value["lowest_nbytes"] == 2 * GIB
    assert (done, text) == ([ASKED], MODEL)


@pytest.mark.parametrize("options", [(), ("--write",), ("--diff",), ("-fjson",)])
def test_what_an_interrupted_plan_found_is_printed(planning, capsys, options):
    code, _, text = planning(dataclasses.replace(PLAN, interrupted=True), *options)
    captured = capsys.readouterr()
    assert (code, text) == (130, MODEL)
    assert ("7.50 GiB" in captured.out + captured.err) or json.loads(captured.out)["interrupted"]
    assert captured.err.endswith("jaxresid: interrupted; this is the best plan found so far\n")


def test_plan_diff_is_a_diff_and_nothing_else(planning, capsys):
    code, done, text = planning(PLAN, "--diff")
    captured = capsys.readouterr()
    assert (code, done, text) == (0, [ASKED], MODEL)
    assert captured.out.startswith("--- a/planned_model.py\n+++ b/planned_model.py\n@@")
    assert "+    return jax.numpy.sin(jnp.sin(x)).sum()\n" in captured.out
    assert without_stages(captured.err) == f"jaxresid: {verdict_text(PLAN)}\n"


@pytest.mark.parametrize("option", ["--write", "--diff", "-fjson", "-ftext"])
def test_a_plan_whose_code_cannot_be_traced_is_no_success(planning, capsys, option):
    doubted = dataclasses.replace(PLAN, verified=False, doubt="its code cannot be traced here: x")
    code, done, text = planning(doubted, option)
    captured = capsys.readouterr()
    assert (done, text) == ([ASKED], MODEL)
    if option in ("--write", "--diff"):
        assert (code, captured.out) == (2, "")
        assert "the plan is not verified; nothing was" in captured.err
        assert "its code cannot be traced here: x" in captured.err
        return
    assert code == 1
    if option == "-fjson":
        value = json.loads(captured.out)
        assert (value["fits"], value["verified"], value["doubt"]) == (True, False, doubted.doubt)
    else:
        assert "\nfits 8.00 GiB, not verified: peak about " in captured.out
        assert "\nunverified code\n" in captured.out
        assert "code to write" not in captured.out


def test_plan_writes(planning, capsys):
    code, done, text = planning(PLAN, "--write")
    new = MODEL.replace("jnp.sin(jnp", "jax.numpy.sin(jnp")
    assert (code, done, text) == (0, [ASKED, "verified"], new)
    captured = capsys.readouterr()
    assert "fits 8.00 GiB" in captured.out
    said = "jaxresid: planned_model.py written, unconfirmed: no compiler here\n"
    assert without_stages(captured.err) == said


def test_plan_confirms_what_it_writes_where_there_is_a_compiler(planning, capsys):
    asked = [ASKED, ("tpu:v5e", 120.0)]
    given = ("--write", "--on", "tpu:v5e")
    code, done, text = planning(CONFIRMED, *given, unavailable=None)
    assert (code, done, text != MODEL) == (0, [*asked, "verified"], True)
    assert without_stages(capsys.readouterr().err) == "jaxresid: planned_model.py written\n"
    late = dataclasses.replace(PLAN, unconfirmed=("a variant",), warnings=("no time",))
    code, done, _ = planning(late, *given, unavailable=None)
    assert (code, done) == (2, asked)
    said = capsys.readouterr().err
    assert "XLA did not confirm the plan; nothing was written\n  no time\n" in said


def test_plan_compiles_only_if_asked_but_on_a_cpu(planning, capsys):
    compiling = ("--compile", "--compile-time", "3m")
    assert planning(PLAN, "--on", "tpu:v5e", unavailable=None)[1] == [ASKED]
    assert planning(PLAN, "--on", "tpu:v5e", "--diff", unavailable=None)[1] == [ASKED]
    done = planning(CONFIRMED, "--on", "tpu:v5e", *compiling, unavailable=None)[1]
    assert done == [ASKED, ("tpu:v5e", 180.0)]
    done = planning(CONFIRMED, "--on", "cpu", unavailable=None)[1]
    assert done == [ASKED, ("cpu", 120.0)]
    capsys.readouterr()
    code, done, _ = planning(PLAN, "--on", "tpu:v5e", "--compile")
    assert (code, done) == (2, []) and "no compiler here" in capsys.readouterr().err


def test_a_plan_that_is_too_close_is_shown_and_written_but_no_success(planning, capsys):
    close = dataclasses.replace(PLAN, answer="too close")
    code, done, text = planning(close, "--diff")
    captured = capsys.readouterr()
    assert (code, text) == (1, MODEL) and captured.out.startswith("--- a/planned_model.py\n")
    assert "too close to 8.00 GiB" in captured.err
    code, done, text = planning(close, "--write")
    assert (code, done[-1], text != MODEL) == (1, "verified", True)


def test_without_a_budget_it_is_the_memory_of_the_place(planning):
    from jaxresid.xla.places import parse_place

    found = planning(PLAN, "--on", "tpu:v5e", "--margin", "1GiB", budget=())[1]
    assert found[0][0] == parse_place("tpu:v5e").memory_nbytes - GIB


def test_plan_writes_nothing_that_does_not_hold(planning, capsys):
    code, done, text = planning(PLAN, "--write", error=JaxresidError("planned 1 B, found 2 B"))
    assert (code, done, text) == (2, [ASKED, "verified"], MODEL)
    captured = capsys.readouterr()
    assert captured.out == "" and "planned 1 B, found 2 B" in captured.err


@pytest.mark.parametrize("option", ["--write", "--diff"])
def test_plan_writes_nothing_where_something_cannot_be_written(planning, capsys, option):
    reasons = ("m.py:42: `h` is no function", "m.py:50 is in a notebook")
    plan = dataclasses.replace(PLAN, unwritten=reasons, verified=False, doubt=reasons[0])
    code, done, text = planning(plan, option)
    assert (code, done, text) == (2, [ASKED], MODEL)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"the plan cannot be written:\n  {reasons[0]}\n  {reasons[1]}\n" in captured.err
    # Printed, it is said with the rest.
    code, done, text = planning(plan)
    assert (code, done, text) == (0, [ASKED], MODEL)
    assert f"\nnot written\n{reasons[0]}\n{reasons[1]}\n" in capsys.readouterr().out


def test_plan_writes_nothing_where_nothing_fits(planning, capsys):
    for option in ("--write", "--diff"):
        code, done, text = planning(NO_FIT, option)
        assert (code, done, text) == (1, [ASKED], MODEL)
        captured = capsys.readouterr()
        assert ("nothing fits" in captured.out) == (option == "--write")
        assert "nothing fits" in captured.err or "nothing written" in captured.err
        assert "---" not in captured.out


def test_plan_writes_nothing_where_nothing_changes(planning, capsys):
    code, done, text = planning(PLAN, "--write", edits=())
    assert (code, done, text) == (0, [ASKED], MODEL)
    assert without_stages(capsys.readouterr().err) == "jaxresid: nothing written\n"
