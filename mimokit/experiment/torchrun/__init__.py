"""Experiments under torchrun: rank 0 drives and writes, all ranks train."""
