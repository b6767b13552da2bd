"""Records training loops that are not mimokit's (`watch`), and compares recordings (`compare`)."""
