"""Layout invariance on a rank: the one-process oracle and the comparison with it."""
