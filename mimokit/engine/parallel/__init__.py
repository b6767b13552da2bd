"""Process groups of a rank, and what is reduced over them."""
