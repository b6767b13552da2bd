"""Times the steps of a schedule on every rank, on one clock."""
