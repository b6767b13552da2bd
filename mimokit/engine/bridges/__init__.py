"""How rows cross from one module to another: messages, routes, and bridges on shared ranks."""
