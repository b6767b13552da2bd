"""Modules that share their ranks: model, bridge and schedule."""
