"""What the layout planner knows without a browser: drafts, edits, problems, words and figures."""
