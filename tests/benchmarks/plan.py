"""Plans against what people try by hand: every policy everywhere, and k of n layers.

    python tests/benchmarks/plan.py [--only TEXT] [--most 8] [--every] [--on tpu:v5p|gpu:h100]

Of each program the points are the rows of `compare` at its default place and at `whole`, and the
first k, the last k and every second of its n layers checkpointed under three policies. At each
point's peak a plan is made, and its recomputed FLOPs are held against the point's: less, as many
(within 0.05 % of the program's FLOPs, below which the planner asks for no edit), or more. Planned
for are the points that no other one beats in both, of more than `--most` so many, spread evenly;
with `--every` all points. Programs are traced, none is compiled or run. Exits 1 if a plan is dearer
than a point, or does not fit.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import zoo

from fixtures.inspect import train_step
from jaxresid.advice.compare.compare import comparison
from jaxresid.base.errors import JaxresidError
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.choices import CheckpointPlace, Choice
from tests.plans import planned

# As `advice.plan` has it: what spares less than that share of all FLOPs is worth no edit.
SLACK = 5e-4
MIB = 1 << 20
POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A program: `build` gives a function and its abstract arguments."""

    name: str
    build: Callable[[], tuple]
    mode: str = "loss"


@dataclass(frozen=True, slots=True)
class Point:
    """What someone could write by hand, with the peak in bytes and the recomputed FLOPs."""

    words: str
    peak: int
    recompute: int


def from_zoo(name):
    (found,) = [case for case in zoo.CASES if case.name == name]
    return Case(name, lambda: found.build("cpu"))


def from_fixture(module, name, package):
    def build():
        imported = importlib.import_module(f"fixtures.inspect.{module}")
        return getattr(imported, name), getattr(imported, f"{name}_inputs")()

    is_there = importlib.util.find_spec(package) is not None
    return [Case(f"{package}/{name}", build)] if is_there else []


def step(name, width=64, layers=4):
    def build():
        return getattr(train_step, name), train_step.train_step_inputs(width, layers)

    return Case(f"step/{name}", build, "step")


CASES = (
    from_zoo("mlp/unroll/none"),
    from_zoo("mlp/unroll/dots"),
    from_zoo("sine/scan/none"),
    from_zoo("sine/unroll/nothing"),
    from_zoo("mha/scan/dots"),
    from_zoo("mha/unroll/none"),
    from_zoo("moe/scan/none"),
    from_zoo("unet/unroll/none"),
    from_zoo("autoencoder/unroll/nothing"),
    from_zoo("towers/scan/none"),
    *from_fixture("equinox_model", "loss_remat", "equinox"),
    *from_fixture("nnx_model", "loss", "flax"),
    step("train_step_checkpointed"),
)


def points(found, variants, mode) -> Iterator[Point]:
    # Nothing can be put around the loss inside a step.
    for at in (None,) if mode == "program" else (None, "whole"):
        made = comparison(found, at=at)
        for row in made.rows:
            if row.error is None and not row.host_nbytes:
                yield Point(f"{row.policy} at {made.at}", row.peak_nbytes, row.recompute_flops)
    sites = {p: (None,) * p.calls for p in variants.places() if p.kind == "checkpoint"}
    plain = variants.variant(sites).cost
    for layers in stacks(variants):
        for words, taken in subsets(len(layers)):
            for name, policy in POLICIES.items():
                chosen = {place: [None] * place.calls for place, _ in layers}
                for i in taken:
                    place, call = layers[i]
                    which = range(place.calls) if call is None else [call]
                    for each in which:
                        chosen[place][each] = Choice(policy)
                choices = sites | {place: tuple(made) for place, made in chosen.items()}
                try:
                    made = variants.variant(choices)
                except JaxresidError:
                    continue
                where = ", ".join(dict.fromkeys(place.function for place, _ in layers))
                yield Point(
                    f"{name}, {words} of {where}", made.peak_nbytes, (made.cost - plain).flops
                )


def stacks(variants) -> list[list[tuple[CheckpointPlace, int | None]]]:
    """What a program repeats, by (place, number of the call; None: all of them): the calls of each
    place, and the calls of all places that are apart from each other."""
    places = variants.places()
    overlapping = set(variants.overlaps())
    kinds = ("checkpoint",) if any(p.kind == "checkpoint" for p in places) else ("scan", "call")
    found = []
    apart: list[CheckpointPlace] = []
    for place in places:
        if place.kind not in kinds:
            continue
        if place.calls > 1 and place.can_split:
            found.append(calls(place))
        if not any((place, p) in overlapping or (p, place) in overlapping for p in apart):
            apart.append(place)
    if len(apart) > 1:
        found.append([call for place in apart for call in calls(place)])
    return found


def calls(place):
    return [(place, i) for i in range(place.calls)] if place.can_split else [(place, None)]


def subsets(n):
    for k in range(1, n + 1):
        yield f"first {k}", range(k)
    for k in range(1, n):
        yield f"last {k}", range(n - k, n)
    yield "every second", range(0, n, 2)
    yield "every other second", range(1, n, 2)


def optimal(tried):
    """Those that no other one beats, the cheapest first; of equal ones the first."""
    found = []
    for point in sorted(tried, key=lambda p: (p.recompute, p.peak)):
        if not found or point.peak < found[-1].peak:
            found.append(point)
    return found


def spread(items, most):
    """At most so many of them, the ends included."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def measure(case, on, most):
    """Prints the line of a case, and each loss.

    Args:
      most: how many points are planned for; None: all.

    Returns:
      how many points the plans lose to, beat and equal, and what each plan saves.
    """
    fun, args = case.build()
    found = subject(Question(fun, args, mode=case.mode, on=on))
    variants = found.variants()
    start = time.perf_counter()
    tried = list(points(found, variants, case.mode))
    traced = time.perf_counter() - start
    sites = {p: (None,) * p.calls for p in variants.places() if p.kind == "checkpoint"}
    flops = variants.variant(sites).cost.flops
    chosen = tried if most is None else spread(optimal(tried), most)
    cheaper = equal = 0
    savings, seconds, traces, losses = [], [], [], []
    plans = {}
    for point in chosen:
        if point.peak not in plans:
            start = time.perf_counter()
            plans[point.peak] = planned(found, point.peak)
            seconds.append(time.perf_counter() - start)
            traces.append(plans[point.peak].tried)
        plan = plans[point.peak]
        spared = (point.recompute - plan.recompute_flops) / flops
        if not plan.is_within or plan.peak_nbytes > point.peak or spared < -SLACK:
            losses.append((point, plan, spared))
        elif spared > SLACK:
            cheaper += 1
        else:
            equal += 1
        savings.append(spared)
    print(
        f"{case.name:28} {len(tried):6} {len(chosen):7}  {cheaper:4} {equal:4} {len(losses):4}  "
        f"{statistics.median(savings):8.2%} {max(savings):8.2%}  "
        f"{statistics.median(seconds):6.1f} {max(seconds):6.1f} {statistics.median(traces):5.0f}"
        f"  {traced:6.1f}",
        flush=True,
    )
    for point, plan, spared in losses:
        sites = "; ".join(
            f"{site.function}: "
            + ", ".join(f"{p.calls} {p.policy if p.checkpointed else 'bare'}" for p in site.parts)
            for site in plan.sites
        )
        print(
            f"    {point.words}: peak {point.peak / MIB:.3f} MiB, {point.recompute / flops:.2%}; "
            f"plan: fits {plan.is_within}, {plan.peak_nbytes / MIB:.3f} MiB, "
            f"{plan.recompute_fraction:.2%} ({spared:+.2%}), {sites}",
            flush=True,
        )
    return len(losses), cheaper, equal, savings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--most", type=int, default=8, help="points of a program planned for")
    parser.add_argument("--every", action="store_true", help="plan for each point's peak")
    parser.add_argument("--on", choices=("tpu:v5p", "gpu:h100"), default="tpu:v5p")
    options = parser.parse_args()
    if options.most < 2:
        parser.error("--most: at least 2, the two ends")
    most = None if options.every else options.most
    cases = [case for case in CASES if options.only in case.name]
    if not cases:
        sys.exit(f"no program's name contains {options.only!r}")
    print(f"jax {jax.__version__}, on {options.on}")
    print("points planned: how many plans recompute less, as much, more than the point they fit")
    print("saving: fewer recomputed FLOPs, in shares of the program's without checkpoints")
    print(
        f"{'program':28} {'points':>6} {'planned':>7}  {'less':>4} {'same':>4} {'more':>4}  "
        f"{'median':>8} {'best':>8}  {'s':>6} {'worst':>6} {'tried':>5}  {'points s':>6}"
    )
    rows = [measure(case, options.on, most) for case in cases]
    lost, cheaper, equal = (sum(row[i] for row in rows) for i in range(3))
    savings = list(itertools.chain.from_iterable(row[3] for row in rows))
    print(
        f"{len(savings)} points: less {cheaper}, as much {equal}, more {lost}; "
        f"median saving {statistics.median(savings):.2%}, best {max(savings):.2%}"
    )
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
