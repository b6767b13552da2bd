"""The ranks of a torchrun job as a cluster: rank 0 submits, all ranks work."""
