"""The charts room."""
