"""Layouts in and out."""
