"""The network that generates, in plain torch: layers on shards, a cache, sampling from shards."""
