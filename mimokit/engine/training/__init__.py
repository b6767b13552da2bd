"""Training on a rank: the loop, evaluation, and what is measured on the way."""
