"""Process groups of a rank, and reductions over them."""
