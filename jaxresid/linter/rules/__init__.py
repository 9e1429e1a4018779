"""The rules, one module each, and their index.

With the index, a run that finds no candidate need not import all of them. A test checks that the
index agrees with the rules and lists every module of this package. A module that cannot be imported
fails the run, because a rule that is silently missing would look like clean code.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxresid.linter.rule import Rule

# Code, name, severity, and the markers where they are not the usual ones (`-`: none).
_TABLE = """
JXR001 unused-suppression warning -
JXR101 checkpointed-loss warning
JXR102 checkpointed-last-stage warning
JXR103 checkpoint-around-loop warning
JXR104 checkpoint-of-gradient warning
JXR105 discarded-checkpoint error
JXR106 nested-checkpoint warning
JXR107 trivial-checkpoint warning
JXR108 undifferentiated-checkpoint warning
JXR109 unwrapped-loop-body info checkpoint remat scan map
JXR201 uncalled-policy-factory error
JXR202 called-policy error
JXR203 misread-policy-names error
JXR205 ineffective-policy warning
JXR207 policy-callable-mistake error
JXR208 save-anything-except error
JXR213 policy-lookup-default warning
JXR214 unused-policy warning
JXR301 undefined-checkpoint-name warning
JXR302 unused-checkpoint-name info
JXR303 discarded-checkpoint-name error
JXR304 stale-value-after-naming warning
JXR305 named-nonlinearity-output warning
JXR306 named-carry-output warning
JXR308 name-outside-custom-vjp-forward warning
JXR401 cse-allowed-outside-loop warning
JXR403 cse-allowed-in-nested-checkpoint warning
JXR404 cse-prevented-in-loop info
JXR501 checkpoint-arguments error
JXR504 static-argument-index error
JXR505 removed-checkpoint-api error
JXR506 private-checkpoint-import warning
JXR507 late-bound-checkpoint error
JXR601 jax-checkpoint-of-nnx-module error
JXR602 jax-checkpoint-of-module error
JXR603 unnamed-linen-remat warning
"""
# Code, name and severity of what only a trace can tell. `jaxresid check` finds these and
# `jaxresid.advice.check.rules` documents them; here they are known as words of a configuration or
# of a comment, and nothing more.
_TRACED_TABLE = """
JXR801 useless-checkpoint warning
JXR802 costly-checkpoint warning
JXR803 value-saved-twice warning
JXR804 unmatched-policy warning
JXR805 offload-without-effect warning
JXR807 free-residual info
JXR808 compiler-recomputes info
JXR809 unrolled-host-moves warning
JXR810 transposed-host-scan info
JXR821 peak-over-budget error
JXR822 kept-over-budget error
JXR823 grown-over-baseline error
JXR830 logits-at-peak info
JXR831 missing-donation info
JXR832 unusable-donation warning
JXR833 needless-loop-state info
JXR840 defeated-policy warning
JXR841 attention-scores-at-peak info
JXR842 whole-batch-at-once info
JXR843 gathered-weights-kept info
JXR844 activations-left-whole info
JXR845 vmap-too-wide info
JXR846 costly-jacobian-mode info
JXR847 one-hot-matmul info
JXR848 moments-without-gradient info
JXR849 mask-broadcast-before-loop info
"""


class RuleEntry(NamedTuple):
    """The properties of a rule that a run needs before it reads a file."""

    code: str
    name: str
    severity: str
    markers: tuple[bytes, ...]

    @property
    def is_default(self) -> bool:
        """Return whether the rule is on without being selected."""
        return self.severity != "info"


def _entries(table: str, usual: tuple[str, ...]) -> Iterator[RuleEntry]:
    for line in table.strip().splitlines():
        code, name, severity, *markers = line.split()
        words = () if markers == ["-"] else tuple(markers) or usual
        yield RuleEntry(code, name, severity, tuple(word.encode() for word in words))


INDEX = tuple(_entries(_TABLE, ("checkpoint", "remat")))
TRACED = tuple(_entries(_TRACED_TABLE, ()))
# code -> name of all that a selector or a suppression may name.
KNOWN = {entry.code: entry.name for entry in (*INDEX, *TRACED)}


@cache
def rule(name: str) -> type[Rule]:
    """Return the rule with a name.

    Raises:
      ImportError: The rule's module cannot be imported.
      AttributeError: The rule's module does not define its class.
    """
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    cls: type[Rule] = getattr(module, "".join(w.capitalize() for w in name.split("-")))
    return cls


def all_rules() -> tuple[type[Rule], ...]:
    """Return every rule, in the order of codes."""
    return tuple(rule(entry.name) for entry in INDEX)
