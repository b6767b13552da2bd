"""Modules on separate ranks: messages, routes between modules, stages and the executor."""
