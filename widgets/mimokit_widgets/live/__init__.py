"""The live monitor: rows that are streamed to the browser, and what stays of them."""
