"""Names the first tensor of a step on which a layout and one process disagree."""
