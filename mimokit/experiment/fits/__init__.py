"""Fits of a torch model under a strategy between nodes, on engines."""
