"""What a training loop of the user's own calls, as the source documents call it."""
