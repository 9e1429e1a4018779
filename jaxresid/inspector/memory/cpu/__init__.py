"""Model what XLA:CPU materialises."""
