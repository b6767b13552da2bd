"""The commands of `mimokit`."""
