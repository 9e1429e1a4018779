"""jraph and Haiku: a graph network of two rounds, with `hk.remat` around each."""

import haiku as hk
import jax
import jax.numpy as jnp
import jraph


def net(graph):
    def mlp(name):
        return jraph.concatenated_args(hk.Sequential([hk.Linear(64, name=name), jax.nn.relu]))

    graph = jraph.GraphMapFeatures(hk.Linear(32), hk.Linear(32), hk.Linear(32))(graph)
    for i in range(2):
        network = jraph.GraphNetwork(mlp(f"edge{i}"), mlp(f"node{i}"), mlp(f"global{i}"))
        graph = hk.remat(network)(graph)
    return hk.Linear(1)(graph.globals)


model = hk.without_apply_rng(hk.transform(net))


def loss(params, nodes, edges, labels):
    return jnp.mean((model.apply(params, graph_of(nodes, edges)) - labels) ** 2)


def graph_of(nodes, edges):
    index = jnp.arange(edges.shape[0]) % nodes.shape[0]
    return jraph.GraphsTuple(
        nodes=nodes,
        edges=edges,
        senders=index,
        receivers=(index * 7) % nodes.shape[0],
        n_node=jnp.array([32, 32]),
        n_edge=jnp.array([128, 128]),
        globals=jnp.zeros((2, 8)),
    )


def loss_inputs():
    nodes, edges = jnp.zeros((64, 16)), jnp.zeros((256, 8))
    params = model.init(jax.random.PRNGKey(0), graph_of(nodes, edges))
    return params, nodes, edges, jnp.zeros((2, 1))
