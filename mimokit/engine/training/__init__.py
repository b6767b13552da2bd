"""Training on a rank: the loop, evaluation and measurements."""
