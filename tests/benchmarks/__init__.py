"""Benchmarks: figures for the README, measured in one run. Not part of the test suite."""
