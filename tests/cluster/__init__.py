"""Tests of the cluster room."""
