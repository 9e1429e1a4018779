import jax


def forward(xs):
    def step(c, x):
        return c + jax.numpy.sin(jax.numpy.sin(x)), None

    return jax.lax.scan(step, 0.0, xs)[0], xs
