"""A sweep: many experiments on one cluster, each with its own folder."""
