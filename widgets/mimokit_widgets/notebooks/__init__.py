"""Notebooks executed without a browser, and the pages they leave."""
