"""The data of a rank: data sets, batches and iterators."""
