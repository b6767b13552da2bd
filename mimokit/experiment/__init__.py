"""The experiment room."""
