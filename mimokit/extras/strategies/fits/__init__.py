"""The fit of a model under a strategy: what runs on each node. Plain torch.

`mimokit.experiment.Trainer` sends a `FitJob` to the nodes, which call `fit_node`.
"""
