"""Notebook views of mimokit."""
