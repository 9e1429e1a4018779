from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import apis
from jaxresid.linter.rule import Example, Rule
from jaxresid.violations import Edit, Fix, Violation

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_CONSTANT = {"nothing_saveable": "False", "everything_saveable": "True"}


class CalledPolicy(Rule):
    """A policy is called where it should be given.

    ## What it does
    Finds a call without arguments of a plain policy: `nothing_saveable()`, `dots_saveable()`.

    ## Why is this bad?
    The plain policies are no factories. `nothing_saveable()` is `False`, which JAX takes for no
    policy (and the implementation behind `jax_remat3` raises); `everything_saveable()` is `True`,
    which raises once it is differentiated; the others raise at once, as they need a primitive.

    ## Use instead
    The function itself: `policy=jax.checkpoint_policies.nothing_saveable`.

    ## When it is right after all
    With arguments, inside a policy of your own: `dots_saveable(prim, *args, **params)`.

    ## Is the fix safe?
    Yes: it removes the empty brackets. `False` and `nothing_saveable` save the same, and the
    others cannot have worked.
    """

    code = "JXR202"
    name = "called-policy"
    severity = "error"
    why = "A plain policy is what jax.checkpoint calls, not something that makes one."
    help = "remove the empty brackets"
    fixes = "safe"
    bad = (
        Example(
            "import jax\n\n\n"
            "def run(layer, w, x, policy=jax.checkpoint_policies.nothing_saveable()):  # !\n"
            "    return jax.checkpoint(layer, policy=policy)(w, x)\n",
            fixed="import jax\n\n\n"
            "def run(layer, w, x, policy=jax.checkpoint_policies.nothing_saveable):\n"
            "    return jax.checkpoint(layer, policy=policy)(w, x)\n",
        ),
        Example(
            "from jax import checkpoint as ckpt\n"
            "from jax import checkpoint_policies as cp\n\n\ndef run(layer, w, x):\n"
            "    return ckpt(layer, policy=cp.dots_saveable())(w, x)  # !\n",
            fixed="from jax import checkpoint as ckpt\n"
            "from jax import checkpoint_policies as cp\n\n\ndef run(layer, w, x):\n"
            "    return ckpt(layer, policy=cp.dots_saveable)(w, x)\n",
        ),
        Example(
            "import functools\n\nimport jax\n\n"
            "keep_all = jax.checkpoint_policies.everything_saveable\n\n\n@functools.partial(\n"
            "    jax.remat,\n    policy=keep_all(),  # !\n)\ndef block(w, x):\n"
            "    return jax.numpy.sin(x @ w)\n",
            fixed="import functools\n\nimport jax\n\n"
            "keep_all = jax.checkpoint_policies.everything_saveable\n\n\n@functools.partial(\n"
            "    jax.remat,\n    policy=keep_all,\n)\ndef block(w, x):\n"
            "    return jax.numpy.sin(x @ w)\n",
        ),
        Example(
            "import jax.ad_checkpoint\n\n\ndef policy_for(name):\n"
            "    cp = jax.ad_checkpoint.checkpoint_policies\n    return {\n"
            '        "dots": cp.checkpoint_dots(),  # !\n'
            '        "batch": cp.dots_with_no_batch_dims_saveable(  # !\n        ),\n'
            "    }[name]\n",
            fixed="import jax.ad_checkpoint\n\n\ndef policy_for(name):\n"
            "    cp = jax.ad_checkpoint.checkpoint_policies\n    return {\n"
            '        "dots": cp.checkpoint_dots,\n'
            '        "batch": cp.dots_with_no_batch_dims_saveable,\n    }[name]\n',
        ),
    )
    good = (
        Example(
            "import jax\n\n\n"
            "def run(layer, w, x, policy=jax.checkpoint_policies.nothing_saveable):\n"
            "    return jax.checkpoint(layer, policy=policy)(w, x)\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\n"
            "def policy(prim, *args, **params):\n"
            '    return cp.dots_saveable(prim, *args, **params) or prim.name == "exp"\n'
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef mine(prim, *_, **__):\n"
            "    return cp.nothing_saveable()\n\n\n"
            "nothing = lambda *_, **__: cp.nothing_saveable()\n"
        ),
        Example(
            "import jax\nimport pytest\n\n\ndef test_policy():\n"
            "    assert not jax.checkpoint_policies.nothing_saveable()\n"
            "    assert jax.checkpoint_policies.everything_saveable() is True\n"
            "    with pytest.raises(TypeError):\n"
            "        jax.checkpoint_policies.dots_saveable()\n"
        ),
        Example(
            "import jax\n\ncp = jax.checkpoint_policies\n\n\ndef run(layer, w, x, arguments):\n"
            "    kept = cp.dots_saveable(*arguments)\n"
            "    return jax.checkpoint(layer, policy=cp.save_only_these_names())(w, x), kept\n"
        ),
        Example(
            "from policies import checkpoint_policies as cp\n\n\ndef run(layer, w, x, remat):\n"
            "    return remat(layer, policy=cp.nothing_saveable())(w, x)\n"
        ),
        Example(
            "import jax\n\n\ndef run(cp, layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=cp.dots_saveable())(w, x)\n"
        ),
        Example(
            "import jax\n\n\ndef dots_saveable():\n"
            "    return jax.checkpoint_policies.dots_saveable\n\n\ndef run(layer, w, x):\n"
            "    return jax.checkpoint(layer, policy=dots_saveable())(w, x)\n"
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        for call, _ in facts.policy_calls:
            name = policies.name_of(facts, call.func)
            if name not in apis.PLAIN_POLICIES or call.args or call.keywords:
                continue
            if name in _CONSTANT and _is_truth(facts, call):
                continue
            what = policies.written(facts, call)
            result = f"gives {_CONSTANT[name]}" if name in _CONSTANT else "raises"
            message = f"`{what}` calls the policy, which {result}, instead of naming it"
            yield self.report(facts, call, message, fix=_uncall(facts, call))


def _is_truth(facts: Facts, call: ast.Call) -> bool:
    """Whether the result is wanted for its truth: in a test, or from a policy of the user's."""
    parent = facts.names.parents.get(call)
    if isinstance(parent, (ast.Compare, ast.UnaryOp, ast.BoolOp, ast.Assert, ast.If, ast.While)):
        return True
    if isinstance(parent, ast.IfExp) and parent.test is call:
        return True
    function = facts.names.function(call)
    if function is None or (function.args.vararg is None and function.args.kwarg is None):
        return False
    return isinstance(parent, (ast.Return, ast.Lambda))


def _uncall(facts: Facts, call: ast.Call) -> Fix | None:
    source = facts.source
    start, end = source.end(source.span(call.func)), source.end(source.span(call))
    span = source.between(start, end)
    if "#" in source.segment(span):
        return None
    return Fix("Remove the empty brackets", (Edit(span, ""),), "safe")
