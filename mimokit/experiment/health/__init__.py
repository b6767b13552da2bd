"""The health of a training run: what its ranks measure, record and are compared in."""
