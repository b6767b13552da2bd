"""Modules that share their ranks: their bridges, and the samples of each in a batch."""
