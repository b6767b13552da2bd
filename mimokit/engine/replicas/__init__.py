"""Replicas of a layout: the world of each, and what their ranks exchange."""
