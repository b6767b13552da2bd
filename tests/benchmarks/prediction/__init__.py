"""The predictor judged by published measurements: `python -m tests.benchmarks.prediction`."""
