from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts


class UnusedSuppression(Rule):
    """A comment silences a rule that reports nothing there.

    ## What it does
    Finds `# jaxresid: ignore[...]` and the JXR codes of `# noqa: ...` that silence nothing, and
    codes in them that do not exist. Bare `# noqa` and other tools' codes are left alone, and so is
    a code whose rule is not on in this run.

    ## Why is this bad?
    A comment that outlives its reason hides the next mistake on that line.

    ## Use instead
    Nothing; remove the comment.

    ## When is this fine?
    Where the finding depends on the version of JAX that is targeted, and both are linted:
    `# jaxresid: ignore[JXR501, JXR001]`.

    ## Is the fix safe?
    Yes: it removes a comment, or one code from it.
    """

    code = "JXR001"
    name = "unused-suppression"
    severity = "warning"
    why = "It would hide the next finding on this line."
    help = "remove it"
    fixes = "safe"
    markers = ()
    bad = (
        Example(
            """
            import jax


            def f(g, x):
                return jax.checkpoint(g)(x)  # jaxresid: ignore[JXR105]  # !
            """,
            fixed="""
            import jax


            def f(g, x):
                return jax.checkpoint(g)(x)
            """,
        ),
    )
    good = (
        Example(
            """
            import jax


            def f(g, x):
                jax.checkpoint(g)  # jaxresid: ignore[JXR105]
                return g(x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        """Nothing: what is unused shows when all rules have spoken, so the engine asks
        `suppress.apply`.
        """
        del facts
        return iter(())
