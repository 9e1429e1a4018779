"""What devices exchange, as the splits imply it and in what XLA compiles.

Run as a script with a place and names of cases of `sharded.py` and JAX_NUM_CPU_DEVICES=8; prints a
line of JSON for each policy of each: the bytes that one device sends, in rings.
"""

from __future__ import annotations

import json
import sys

import sharded

from jaxresid.inspector.call.question import Question
from jaxresid.inspector.program.ops import Block, Collective
from jaxresid.inspector.report import subject
from jaxresid.inspector.trace.lowering import lowered
from jaxresid.xla.job import Job
from jaxresid.xla.places import parse_place
from jaxresid.xla.processes.process import execute

DEVICES = 8


def implied(block: Block, trips: int = 1) -> float:
    """The bytes that the ops of a block and of its bodies send."""
    total = 0.0
    for op in block.ops:
        total += trips * sum(each.moved_nbytes for each in op.collectives)
        if op.bodies:
            times = trips * ((op.nest.length or 1) if op.nest is not None else 1)
            total += max(implied(body, times) for body in op.bodies)
    return total


def compiled(found: object, place: str) -> float:
    """The bytes that the collectives of a compiled program send, each among all devices."""
    on = parse_place(place)
    said = execute(Job(lowered(found.trace, on.platform), on))  # type: ignore[attr-defined]
    assert said.error is None, said.error
    assert all(each.exact for each in said.collectives), "a loop's trips are not known"
    total = 0.0
    for each in said.collectives:
        if each.opcode == "collective-permute":  # a step of a ring
            total += each.nbytes
            continue
        whole = each.nbytes * (DEVICES if each.opcode == "reduce-scatter" else 1)
        total += Collective(each.opcode, whole, DEVICES).moved_nbytes  # type: ignore[arg-type]
    return total


if __name__ == "__main__":
    for name in sys.argv[2:]:
        (case,) = [each for each in sharded.CASES if each.name == name]
        for policy in ("none", "nothing"):
            args = case.inputs(case.mesh())
            question = Question(case.under(policy), args, argnums=0, mode="loss", on=sys.argv[1])
            found = subject(question)
            row = {
                "case": name,
                "policy": policy,
                "implied": implied(found.program.block),
                "compiled": compiled(found, sys.argv[1]),
            }
            print(json.dumps(row), flush=True)
