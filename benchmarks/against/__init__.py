"""What a change costs: this tree against a tag, in turn in one run."""
