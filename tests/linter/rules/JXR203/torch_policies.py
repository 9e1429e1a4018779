from torch import checkpoint_policies as cp

policy = cp.save_only_these_names(["attn"])
