"""The frozen prefix: boundary activations read from the cache or computed, and whether their bits depend on where."""
