"""The run's ledger: the use of each worker-second, and estimates of the savings by freezing, cache and handed back pods.

`uses`, `books`, `steps`, `saved` and `sums` are arithmetic alone; `keeping` feeds them with the controller's facts and writes the
ledger to a file.
"""
