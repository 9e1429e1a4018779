from models import checkpoint_policies as cp

policy = cp.dots_and_names
