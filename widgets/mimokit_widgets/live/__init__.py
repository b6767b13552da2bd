"""The live monitor: rows that are streamed to the browser."""
