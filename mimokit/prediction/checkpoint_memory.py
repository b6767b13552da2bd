"""A public name whose home is `mimokit.prediction.weights_memory`."""

from mimokit.prediction.weights_memory import checkpoint_memory as checkpoint_memory
