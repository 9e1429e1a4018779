from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxresid.base.violations import Violation
from jaxresid.linter.patterns import conditions
from jaxresid.linter.patterns import policy_names as policies
from jaxresid.linter.resolve import results, stages
from jaxresid.linter.resolve.names import Binding, FunctionNode
from jaxresid.linter.rule import Example, Rule

if TYPE_CHECKING:
    from jaxresid.linter.resolve.facts import Facts

# What may read a name without naming it.
_READS_ALL = frozenset({"locals", "vars", "eval", "exec"})


class UnusedPolicy(Rule):
    """A policy is chosen where no checkpoint takes it.

    ## What it does
    Finds a local name that is given a policy which nothing reads after that: the checkpoint that
    takes the name stands in another branch of the same `if` or `match`, or under a condition that
    excludes the one of the policy, or there is none.

    ## Why is this bad?
    Python says nothing of it. Where the policy is chosen nothing is checkpointed, or with another
    policy, so that memory is not what the option promises.

    ## Use instead
    Choose the policy in the branches, and make the checkpoint after them.

    ## When is this fine?
    Where the name is left over, and no checkpoint was meant to take the policy.
    """

    code = "JXR214"
    name = "unused-policy"
    severity = "warning"
    lenient_in_tests = True
    why = "Where it is chosen, nothing is checkpointed with it."
    help = "make the checkpoint after the branches that choose its policy"
    bad = (
        Example(
            """
            import flax.linen as nn
            import jax


            class Block(nn.Module):
                @nn.compact
                def __call__(self, x):
                    return x + nn.Dense(8)(nn.gelu(nn.Dense(8)(x)))


            class Net(nn.Module):
                remat_policy: str = "minimal"

                @nn.compact
                def __call__(self, x):
                    cls = Block
                    if self.remat_policy == "minimal":
                        policy = jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims  # !
                    elif self.remat_policy == "none":
                        cls = Block
                    else:
                        policy = None
                        cls = nn.remat(Block, policy=policy)
                    for i in range(4):
                        x = cls(name=f"b{i}")(x)
                    return x
            """
        ),
    )
    good = (
        Example(
            """
            import flax.linen as nn
            import jax


            class Net(nn.Module):
                block: type
                remat_policy: str = "minimal"

                @nn.compact
                def __call__(self, x):
                    cls = self.block
                    if self.remat_policy != "none":
                        if self.remat_policy == "minimal":
                            policy = jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims
                        else:
                            policy = None
                        cls = nn.remat(cls, policy=policy)
                    return cls()(x)
            """
        ),
    )

    def find(self, facts: Facts) -> Iterator[Violation]:
        reported = set()
        for node, _ in (*facts.policy_names, *facts.policy_calls):
            statement = facts.names.statement(node)
            chosen = _chosen(facts, statement, node)
            if chosen is None or statement in reported:
                continue
            reported.add(statement)
            binding, leaf = chosen
            readers = _readers(facts, binding)
            policy = policies.source_text(facts, leaf)
            where = "where no checkpoint takes it" if readers else "and nothing reads it"
            yield self.report(
                facts,
                statement,
                f"`{binding.name}` is given the policy `{policy}` {where}",
                related=stages.related_place(facts, readers[0], "read here") if readers else (),
            )


def _chosen(facts: Facts, statement: ast.stmt, node: ast.expr) -> tuple[Binding, ast.expr] | None:
    """Return what a statement binds to a policy that nothing reads, with the policy as written."""
    match statement:
        case ast.Assign(targets=[ast.Name() as target], value=value):
            pass
        case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
            pass
        case _:
            return None
    leaf = next((v for v in policies.leaves(value) if node in {v, getattr(v, "func", None)}), None)
    scope = facts.names.scopes[target]
    binding = next((b for b in scope.bindings.get(target.id, ()) if b.node is statement), None)
    if leaf is None or binding is None or target.id in scope.outer or target.id[0] == "_":
        return None
    if not isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    if _is_read_unseen(facts, binding, scope.node):
        return None
    loads = facts.names.loads_of(binding)
    if all(conditions.exclude_one_another(facts, statement, load) for load in loads):
        return binding, leaf
    return None


def _is_read_unseen(facts: Facts, binding: Binding, function: FunctionNode) -> bool:
    """Return whether something may read a binding unseen: a closure, the next turn of a loop."""
    for parent in facts.names.ancestors(binding.node):
        if parent is function:
            break
        if isinstance(parent, (ast.For, ast.While, ast.AsyncFor, ast.Try)):
            return True
    own = {*results.own_nodes(function)}
    return any(
        isinstance(n, ast.Name) and (n.id in _READS_ALL or (n.id == binding.name and n not in own))
        for n in ast.walk(function)
    )


def _readers(facts: Facts, binding: Binding) -> list[ast.Name]:
    """Return where the function reads the name of a binding."""
    loads = facts.names.loads.get(binding.name, ())
    return [n for n in loads if facts.names.scopes[n].node is binding.owner]
