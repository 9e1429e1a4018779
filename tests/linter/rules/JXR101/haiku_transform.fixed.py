import haiku as hk
import jax


def forward(x):
    return hk.nets.MLP([8, 8, 1])(x).mean()


net = hk.without_apply_rng(hk.transform(forward))


def loss(params, x):
    return net.apply(params, x)


gradient = jax.jit(jax.value_and_grad(loss))
