"""The benchmarks of `make bench`: every ratio from one interleaved run, the peer beside ours, kept in docs/benchmarks.json."""
