"""The text, HTML and JSON of a plan."""
