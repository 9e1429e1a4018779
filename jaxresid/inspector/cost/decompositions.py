"""Count the FLOPs of matrix decompositions and solves.

The formulas are leading orders from Golub & Van Loan, Matrix Computations, 4th edition.
"""

from __future__ import annotations

from jaxresid.inspector.cost.registry import Rules
from jaxresid.inspector.jaxpr.extents import matrices, shape, size
from jaxresid.jax_compat.jaxpr_types import Eqn
from jaxresid.results import Cost

rule = Rules()


@rule("cholesky")
def _cholesky(eqn: Eqn) -> Cost:
    batch, n, _ = matrices(eqn.invars[0])
    return Cost(elementwise_flops=batch * n**3 // 3)


@rule("cholesky_update")
def _cholesky_update(eqn: Eqn) -> Cost:
    """Count a rotation per row, at six FLOPs per element of the triangle."""
    batch, n, _ = matrices(eqn.invars[0])
    return Cost(elementwise_flops=3 * batch * n * n)


@rule("symmetric_product")
def _symmetric_product(eqn: Eqn) -> Cost:
    batch, n, k = matrices(eqn.invars[0])
    return Cost(matmul_flops=2 * batch * n * n * k)


@rule("triangular_solve")
def _triangular_solve(eqn: Eqn) -> Cost:
    """Count n FLOPs per element of the right-hand sides, for an n × n matrix."""
    return Cost(elementwise_flops=size(eqn.invars[1]) * shape(eqn.invars[0])[-1])


@rule("lu")
def _lu(eqn: Eqn) -> Cost:
    batch, m, n = matrices(eqn.invars[0])
    return Cost(elementwise_flops=batch * _eliminated(m, n, min(m, n)))


@rule("householder_product")
def _householder_product(eqn: Eqn) -> Cost:
    batch, m, n = matrices(eqn.invars[0])
    return Cost(elementwise_flops=2 * batch * _eliminated(m, n, shape(eqn.invars[1])[-1]))


@rule("ormqr")
def _householder_applied(eqn: Eqn) -> Cost:
    """Count four FLOPs per element of the other operand, all of which each reflector updates."""
    _, _, k = matrices(eqn.invars[0])
    return Cost(elementwise_flops=4 * size(eqn.outvars[0]) * k)


@rule("qr")
def _qr(eqn: Eqn) -> Cost:
    """Count the triangle and an explicit Q."""
    batch, m, n = matrices(eqn.invars[0])
    k = min(m, n)
    columns = shape(eqn.outvars[0])[-1]
    return Cost(elementwise_flops=2 * batch * (_eliminated(m, n, k) + _eliminated(m, columns, k)))


def _eliminated(m: int, n: int, k: int) -> int:
    """Return the FLOPs of k elimination steps on an m × n matrix: Σ 2 (m - i)(n - i)."""
    return 2 * m * n * k - (m + n) * k * k + 2 * k**3 // 3


@rule("eigh")
def _eigh(eqn: Eqn) -> Cost:
    """Count 9n³ FLOPs, or 4n³/3 for the eigenvalues alone."""
    batch, n, _ = matrices(eqn.invars[0])
    return Cost(elementwise_flops=batch * (9 * n**3 if len(eqn.outvars) > 1 else 4 * n**3 // 3))


@rule("eig", "schur")
def _eig(eqn: Eqn) -> Cost:
    """Count 25n³ FLOPs, or 10n³ for the eigenvalues alone."""
    batch, n, _ = matrices(eqn.invars[0])
    return Cost(elementwise_flops=batch * (25 if len(eqn.outvars) > 1 else 10) * n**3)


@rule("hessenberg")
def _hessenberg(eqn: Eqn) -> Cost:
    batch, n, _ = matrices(eqn.invars[0])
    return Cost(elementwise_flops=batch * 10 * n**3 // 3)


@rule("tridiagonal")
def _tridiagonal(eqn: Eqn) -> Cost:
    batch, n, _ = matrices(eqn.invars[0])
    return Cost(elementwise_flops=batch * 4 * n**3 // 3)


@rule("tridiagonal_solve")
def _tridiagonal_solve(eqn: Eqn) -> Cost:
    """Count elimination without pivoting: eight FLOPs per unknown."""
    return Cost(elementwise_flops=8 * size(eqn.outvars[0]))


@rule("svd")
def _svd(eqn: Eqn) -> Cost:
    """Count Golub-Reinsch on an m × n matrix with m ≥ n.

    That is 14mn² + 8n³ for thin factors, 4m²n + 8mn² + 9n³ for full ones, and 4mn² - 4n³/3 for the
    singular values alone.
    """
    batch, *sides = matrices(eqn.invars[0])
    m, n = max(sides), min(sides)
    if not eqn.params["compute_uv"]:
        flops = 4 * m * n * n - 4 * n**3 // 3
    elif eqn.params["full_matrices"]:
        flops = 4 * m * m * n + 8 * m * n * n + 9 * n**3
    else:
        flops = 14 * m * n * n + 8 * n**3
    return Cost(elementwise_flops=batch * flops)
