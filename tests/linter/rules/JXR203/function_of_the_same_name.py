def save_only_these_names(names):
    return names


policy = save_only_these_names(["attn", "mlp"])
