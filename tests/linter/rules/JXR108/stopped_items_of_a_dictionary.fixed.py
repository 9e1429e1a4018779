import jax


def stopped(tree):
    return jax.tree.map(jax.lax.stop_gradient, tree)


def distill(teacher, student, batch, hidden):
    def targets(batch):
        out = teacher(batch)
        result = {}
        if hidden:
            result["hidden"] = stopped(out.hidden)
        result["logits"] = jax.lax.stop_gradient(out.logits)
        return result

    return student(batch, **targets(batch))
