"""Modules that share their ranks: model, bridge, schedule."""
