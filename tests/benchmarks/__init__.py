"""The benchmarks of `make bench`. Each ratio is from one interleaved run of ours and a peer; docs/benchmarks.json keeps it."""
