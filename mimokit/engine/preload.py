"""Import this in the process that engines are forked from: all that a rank needs, once."""

from mimokit.engine import megatron as megatron
from mimokit.engine import training as training
from mimokit.engine import verification as verification
