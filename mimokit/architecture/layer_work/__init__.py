"""The work of one layer on one rank, by network and parallel sizes: the one table of it.

Matrix products and scores, collectives, and activations that the backward pass needs. FLOPs, step
time, memory, traffic, health and CPU costs read it. Everything is per token of a micro-batch on a
rank, so that a reader multiplies by its own number of tokens. `moe` are the experts of the layer;
it is None for a dense one.
"""
