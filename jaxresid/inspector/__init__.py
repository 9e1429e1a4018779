"""What a function's backward pass keeps, from abstract inputs. jax lives here."""
