"""The parts of a stepper: its ranks, their tensors, and what a transfer that went wrong did."""
