from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.fixes import public_imports as moved
from jaxresid.linter.patterns import checkpoint_calls
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

_PUBLIC = {
    "jax._src.ad_checkpoint.checkpoint": "jax.checkpoint",
    "jax._src.ad_checkpoint.checkpoint_wrapper": "jax.checkpoint",
    "jax._src.ad_checkpoint.remat": "jax.remat",
    "jax._src.ad_checkpoint.checkpoint_name": "jax.ad_checkpoint.checkpoint_name",
    "jax._src.ad_checkpoint.checkpoint_policies": "jax.checkpoint_policies",
    "jax._src.ad_checkpoint.print_saved_residuals": "jax.ad_checkpoint.print_saved_residuals",
    "jax._src.api.checkpoint": "jax.checkpoint",
    "jax._src.api.remat": "jax.remat",
    "jax._src.interpreters.partial_eval.Recompute": "jax.ad_checkpoint.Recompute",
    "jax._src.interpreters.partial_eval.Saveable": "jax.ad_checkpoint.Saveable",
    "jax._src.interpreters.partial_eval.Offloadable": "jax.ad_checkpoint.Offloadable",
}
_LAST_PARTS = frozenset(name.rpartition(".")[2] for name in _PUBLIC)


class PrivateCheckpointImport(Rule):
    """A public part of the checkpoint API is imported from jax's private modules.

    ## What it does
    Finds `jax._src.ad_checkpoint.checkpoint`, `checkpoint_name`, `checkpoint_policies` and the
    like, where the same thing has a public name.

    ## Why is this bad?
    `jax._src` may change in any release without notice.

    ## Use instead
    `jax.checkpoint`, `jax.remat`, `jax.checkpoint_policies`, `jax.ad_checkpoint.checkpoint_name`
    and `jax.ad_checkpoint.print_saved_residuals`.

    ## When is this fine?
    For what has no public name (`saved_residuals`, `remat_p`): that is not reported.

    ## Is the fix safe?
    Yes: the public name is the same object.
    """

    code = "JXR506"
    name = "private-checkpoint-import"
    severity = "warning"
    why = "Private modules of jax may change in any release without notice."
    help = "use the public name"
    fixes = "safe"
    bad = (
        Example(
            """
            from jax._src.ad_checkpoint import checkpoint_name  # !


            def name(x):
                return checkpoint_name(x, 'h')
            """,
            fixed="""
            from jax.ad_checkpoint import checkpoint_name


            def name(x):
                return checkpoint_name(x, 'h')
            """,
        ),
    )
    good = (
        Example("""
            from jax.ad_checkpoint import checkpoint_name, checkpoint_policies
            """),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        if facts.names.module.partition(".")[0] == "jax":
            return  # its own modules
        for node in facts.names.imports:
            if not isinstance(node, ast.ImportFrom) or node.level:
                continue
            for alias in node.names:
                public = _PUBLIC.get(f"{node.module}.{alias.name}")
                if public is not None and not checkpoint_calls.is_error_expected(facts, node):
                    fix = moved.import_from_public(facts, node, alias, public)
                    message = f"`{node.module}.{alias.name}` is private; `{public}` is the same"
                    yield self.report(facts, alias, message, fix=fix)
        for attribute in facts.names.attributes:
            if attribute.attr not in _LAST_PARTS:
                continue
            origins = facts.names.qualnames(attribute)
            public = _PUBLIC.get(origins[0]) if len(origins) == 1 else None
            if public is not None and not checkpoint_calls.is_error_expected(facts, attribute):
                fix = moved.read_from_public(facts, attribute, public)
                message = f"`{ast.unparse(attribute)}` is private; `{public}` is the same"
                yield self.report(facts, attribute, message, fix=fix)
