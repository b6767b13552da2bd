"""A language model that stays on the ranks of a cluster: checks of its weights, generation."""
