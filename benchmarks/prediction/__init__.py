"""The predictor judged by published measurements: `python -m benchmarks.prediction`."""
