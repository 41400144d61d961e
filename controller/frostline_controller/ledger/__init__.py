"""The run's ledger: what each worker-second went to, and estimates of what freezing, cache and handed back pods saved.

Arithmetic alone in `uses`, `books`, `steps`, `saved` and `sums`; `keeping` feeds it with what the controller knows and keeps it.
"""
