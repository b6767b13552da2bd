"""Benchmarks: figures for docs/benchmarks.md, measured in one run. Not part of the test suite."""
