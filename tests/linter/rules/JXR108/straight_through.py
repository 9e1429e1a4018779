#: The value itself flows on as well.
import jax


def quantized(net, w, x):
    h = jax.checkpoint(net)(w, x)
    return h + jax.lax.stop_gradient(jax.numpy.round(h) - h)
