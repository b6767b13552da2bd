"""Local engines: a server process that starts, watches and ends them, and its client side."""
