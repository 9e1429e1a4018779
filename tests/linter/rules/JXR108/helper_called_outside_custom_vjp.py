import jax


def helper(step, xs):
    return jax.lax.scan(jax.checkpoint(step), 0.0, xs)


@jax.custom_vjp
def run(step, xs):
    return helper(step, xs)


def other(step, xs):
    return helper(step, xs)
