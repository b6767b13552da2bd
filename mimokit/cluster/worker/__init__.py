"""The half of the cluster room that runs inside an engine."""
