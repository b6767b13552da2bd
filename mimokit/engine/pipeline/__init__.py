"""The stages of a rank, in every mode: what they compute, hand each other, and in which order."""
