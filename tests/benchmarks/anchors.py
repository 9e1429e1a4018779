"""`plan` against what people do by hand, and against a bisection over the batch.

    python -m tests.benchmarks.anchors [--on tpu:v5e] [--only dense|moe] [--compile-time 900]

For a dense decoder with the sizes of MaxText's base.yml and a smaller one with eight experts, each
a scan of checkpointed or plain layers, and each place, three ways to the most items per second:

- by hand: each of JAX's policies at the layers, the batch doubled until XLA says no;
- bisection: the same policies, the largest batch that XLA lets fit, as MaxText's estimator has it;
- plan: `--batch ... --maximize throughput --compile`, as `jaxresid plan` does it.

Items per second are the roofline's for all three, peaks are the compiler's, and so is what fits.
Exits 1 if `plan` has fewer items per second than another way, or takes over a fifth of the compiles
of the bisection. Needs the compilers of the places; nothing runs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from jaxresid.advice.compile.ahead_of_time import CompileSettings, PolicyProgram
from jaxresid.advice.compile.limited import LimitedCompiles
from jaxresid.advice.plan.confirmation import compiles_for
from jaxresid.advice.plan.joint.configurations import Configurations, Grid
from jaxresid.advice.plan.joint.joint import jointly_drafted
from jaxresid.advice.timing.chips import chip_of
from jaxresid.advice.timing.roofline import seconds
from jaxresid.base.text.units import format_bytes
from jaxresid.inspector.call.question import Question
from jaxresid.inspector.report import subject
from jaxresid.inspector.variants.candidates import candidates
from jaxresid.inspector.variants.choices import Choice, Variant, everywhere
from jaxresid.xla.places import parse_place, why_unavailable
from jaxresid.xla.processes.cache import CompileCache, default_directory

PLACES = ("tpu:v5p", "tpu:v5e", "gpu:h100")
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder; with more than one expert, all of them see each token."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    length: int
    experts: int = 1


MODELS = {
    "dense": Sizes(16, 2048, 16, 7168, 32000, 2048),
    "moe": Sizes(8, 1024, 8, 1792, 32000, 2048, experts=8),
}


def decoder(sizes: Sizes) -> Callable[..., Any]:
    """Return the loss of a decoder on tokens, its layers in a scan."""
    scale = (sizes.width // sizes.heads) ** -0.5
    causal = jnp.tril(jnp.ones((sizes.length, sizes.length), bool))

    def normed(x, gain):
        square = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
        return (x * jax.lax.rsqrt(square + 1e-6)).astype(x.dtype) * gain

    def attention(x, p):
        q, k, v = (jnp.einsum("btd,dhk->bthk", x, p[name]) for name in ("q", "k", "v"))
        scores = jnp.einsum("bqhk,bthk->bhqt", q, k).astype(jnp.float32) * scale
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
        return jnp.einsum("bqhk,hkd->bqd", jnp.einsum("bhqt,bthk->bqhk", weights, v), p["o"])

    def mlp(x, p):
        hidden = jax.nn.silu(jnp.einsum("btd,edf->btef", x, p["gate"]))
        hidden = hidden * jnp.einsum("btd,edf->btef", x, p["up"])
        if sizes.experts > 1:
            top, chosen = jax.lax.top_k(jnp.einsum("btd,de->bte", x, p["router"]), 2)
            shares = jax.nn.one_hot(chosen, sizes.experts, dtype=x.dtype)
            hidden *= jnp.einsum("btk,btke->bte", jax.nn.softmax(top), shares)[..., None]
        return jnp.einsum("btef,efd->btd", hidden, p["down"])

    def layer(x, p):
        x = x + attention(normed(x, p["gain_a"]), p)
        return x + mlp(normed(x, p["gain_m"]), p), None

    def loss(params, tokens):
        x, _ = jax.lax.scan(layer, params["embedding"][tokens], params["layers"])
        logits = normed(x, params["gain"]) @ params["embedding"].T
        logits = jax.nn.log_softmax(logits.astype(jnp.float32))[:, :-1]
        return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))

    return loss


def inputs(sizes: Sizes, batch: int) -> tuple[Any, Any]:
    """Return abstract parameters of bfloat16, and tokens."""
    n, d, h, k = sizes.layers, sizes.width, sizes.heads, sizes.width // sizes.heads
    shapes = {
        **dict.fromkeys(("q", "k", "v"), (n, d, h, k)),
        "o": (n, h, k, d),
        **dict.fromkeys(("gate", "up"), (n, sizes.experts, d, sizes.hidden)),
        "down": (n, sizes.experts, sizes.hidden, d),
        **dict.fromkeys(("gain_a", "gain_m"), (n, d)),
    }
    if sizes.experts > 1:
        shapes["router"] = (n, d, sizes.experts)
    params = {"layers": shapes, "embedding": (sizes.vocabulary, d), "gain": (d,)}
    made = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16),
        params,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    return made, jax.ShapeDtypeStruct((batch, sizes.length), jnp.int32)


@dataclass(frozen=True, slots=True)
class Way:
    """What a way led to.

    Attributes:
      text: batch and checkpoints.
      items_per_s: items per second by the roofline; 0 where nothing fits.
      peak_nbytes: the compiler's figure.
      compiles: how many programs the compiler was asked about.
      seconds: what it took, compiles included.
    """

    text: str
    items_per_s: float
    peak_nbytes: int
    compiles: int
    seconds: float


class Hand:
    """One model at one place, with one policy at its layers and any batch."""

    def __init__(self, sizes: Sizes, on: str) -> None:
        self._sizes, self._on, self._place = sizes, on, parse_place(on)
        self._loss = decoder(sizes)
        self._variants: dict[tuple[int, str], Variant] = {}
        self._settings = CompileSettings(cache=CompileCache(default_directory()))
        self.compiles = LimitedCompiles(self._place, self._settings, limit_s=1e9)

    def question(self, batch: int) -> Question:
        return Question(self._loss, inputs(self._sizes, batch), on=self._place, argnums=0)

    def policies(self) -> Iterator[tuple[str, Choice | None]]:
        yield "none", None
        yield "nothing_saveable", Choice(None)
        yield from ((c.text, Choice(c.policy)) for c in candidates(()) if "offload" not in c.text)

    def variant(self, batch: int, text: str, choice: Choice | None) -> Variant:
        if (batch, text) not in self._variants:
            found = subject(self.question(batch))
            with found.tracing():
                variants = found.variants()
                (place,) = (p for p in variants.places() if p.kind == "scan")
                chosen = {} if choice is None else {place: everywhere(place, choice)}
                self._variants[batch, text] = variants.variant(chosen)
        return self._variants[batch, text]

    def peak_nbytes(self, batch: int, text: str, choice: Choice | None) -> int | None:
        """Return what the compiler says; None where that does not fit the place."""
        variant = self.variant(batch, text, choice)
        program = PolicyProgram(f"{text} at {batch}", variant.trace, variant.program)
        (row,) = self.compiles.compiled([program])
        if row is None or row.peak_nbytes is None or row.fits is False:
            return None
        room = self._place.memory_nbytes
        return row.peak_nbytes if room is None or row.peak_nbytes <= room else None

    def items_per_s(self, batch: int, text: str, choice: Choice | None) -> float:
        return (
            batch / seconds(self.variant(batch, text, choice).lowered, chip_of(self._place)).total
        )


def by_hand(hand: Hand) -> Way:
    """Double the batch with each policy until it does not fit."""

    def search(fits: Callable[[int], bool]) -> None:
        batch = 1
        while batch <= BATCHES[-1] and fits(batch):
            batch *= 2

    return _best(hand, search)


def by_bisection(hand: Hand) -> Way:
    """Find with each policy the largest batch that fits."""

    def search(fits: Callable[[int], bool]) -> None:
        low, high = 0, len(BATCHES)
        while low < high:
            middle = (low + high) // 2
            if fits(BATCHES[middle]):
                low = middle + 1
            else:
                high = middle

    return _best(hand, search)


def _best(hand: Hand, search: Callable[[Callable[[int], bool]], None]) -> Way:
    start, best = time.monotonic(), ("nothing fits", 0.0, 0)
    asked = 0
    for text, choice in hand.policies():

        def fits(batch: int, text: str = text, choice: Choice | None = choice) -> bool:
            nonlocal best, asked
            asked += 1
            nbytes = hand.peak_nbytes(batch, text, choice)
            if nbytes is None:
                return False
            rate = hand.items_per_s(batch, text, choice)
            best = max(best, (f"batch {batch}, {text}", rate, nbytes), key=lambda b: b[1])
            return True

        search(fits)
    return Way(*best, asked, time.monotonic() - start)


def by_plan(hand: Hand, on: str, limit_s: float) -> Way:
    """Return what `plan` recommends and the compiler confirms."""
    start, place = time.monotonic(), parse_place(on)
    settings = CompileSettings(cache=CompileCache(default_directory()))
    compiles = compiles_for(place, settings, limit_s=limit_s)
    configurations = Configurations(Grid(BATCHES), lambda batch, mesh: hand.question(batch))
    plan, _ = jointly_drafted(configurations, place, None, aim="throughput", compiles=compiles)
    chosen = next((row for row in plan.selection.front if row.chosen), None)
    rate = chosen.items_per_s if chosen and plan.fits and plan.confirmed else 0.0
    text = f"{plan.selection.configuration}, {chosen.checkpoints if chosen else '?'}"
    return Way(text, rate or 0.0, plan.peak_nbytes, plan.compiles, time.monotonic() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", action="append", help="a place  [default: v5p, v5e and h100]")
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--compile-time", type=float, default=900.0, help="seconds for `plan`")
    options = parser.parse_args()
    is_beaten = False
    print(
        f"{'model':6} {'place':9} {'way':10} {'items/s':>9} {'peak':>10} {'compiles':>8} {'s':>6}"
    )
    for name, sizes in MODELS.items():
        if options.only not in (None, name):
            continue
        for on in options.on or PLACES:
            if (reason := why_unavailable(parse_place(on))) is not None:
                print(f"{name:6} {on:9} {reason}")
                continue
            ways = {
                "plan": by_plan(Hand(sizes, on), on, options.compile_time),
                "by hand": by_hand(Hand(sizes, on)),
                "bisection": by_bisection(Hand(sizes, on)),
            }
            for way, made in ways.items():
                print(
                    f"{name:6} {on:9} {way:10} {made.items_per_s:9.2f}"
                    f" {format_bytes(made.peak_nbytes):>10} {made.compiles:8} {made.seconds:6.0f}"
                    f"  {made.text}",
                    flush=True,
                )
            planned, bisected = ways["plan"], ways["bisection"]
            most = max(ways["by hand"].items_per_s, bisected.items_per_s)
            is_beaten |= planned.items_per_s < most or planned.compiles * 5 > bisected.compiles
    sys.exit(1 if is_beaten else 0)


if __name__ == "__main__":
    main()
