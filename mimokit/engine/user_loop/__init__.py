"""Functions for a user's training loop, called as the source documents call them."""
