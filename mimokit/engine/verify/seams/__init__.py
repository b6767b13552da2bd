"""Records activations, gradients and weights of a step, in a layout and in one process."""
