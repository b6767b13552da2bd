"""Configs in files: loading, inheritance, YAML."""
