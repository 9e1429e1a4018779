"""Model what a TPU's compiler materialises."""
