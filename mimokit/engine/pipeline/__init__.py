"""Modules on ranks of their own: tags, messages, routes between modules, stages, the executor."""
