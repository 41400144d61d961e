"""The exactness, cache, recovery and family tests under other kernels than the machine's own choice (`make test-kernels`)."""
