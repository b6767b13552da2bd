"""Records tensors of a training loop that is not mimokit's."""
