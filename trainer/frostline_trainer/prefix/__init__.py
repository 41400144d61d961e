"""The frozen prefix: boundary activations are read from the cache or computed; checks that both give the same bits."""
