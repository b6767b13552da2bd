"""How activations cross from one module to another."""
