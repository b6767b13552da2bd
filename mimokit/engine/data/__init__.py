"""What a rank reads: datasets, batches, iterators."""
