"""The modules of a model as Megatron specs."""
