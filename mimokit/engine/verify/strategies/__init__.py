"""What replicas exchange under a strategy, by plain arithmetic over models in one process."""
