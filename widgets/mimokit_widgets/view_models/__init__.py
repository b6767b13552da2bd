"""Plans turned into what a browser draws: small mappings, byte buffers and words."""
