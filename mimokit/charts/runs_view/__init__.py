"""Runs to explore: a table with eyes, and charts that follow it, in a notebook and on a page."""
