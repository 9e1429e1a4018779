"""ott: a point cloud moved by the gradient of a Sinkhorn divergence, unrolled and implicit."""

import jax.numpy as jnp
from ott.geometry import pointcloud
from ott.problems.linear import linear_problem
from ott.solvers.linear import implicit_differentiation, sinkhorn


def _cost(x, y, implicit):
    geometry = pointcloud.PointCloud(x, y, epsilon=0.1)
    solver = sinkhorn.Sinkhorn(
        min_iterations=10,
        max_iterations=10,
        inner_iterations=5,
        implicit_diff=implicit_differentiation.ImplicitDiff() if implicit else None,
    )
    return solver(linear_problem.LinearProblem(geometry)).reg_ot_cost


def unrolled(x, y):
    return _cost(x, y, implicit=False)


def implicit(x, y):
    return _cost(x, y, implicit=True) + jnp.sum(x**2)


def unrolled_inputs():
    return jnp.zeros((64, 3)), jnp.zeros((48, 3))


implicit_inputs = unrolled_inputs
