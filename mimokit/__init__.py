"""mimokit: plan, run, prove and understand parallel layouts of multi-module models."""
