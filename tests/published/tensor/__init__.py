"""The layouts of tensor parallelism by what they send and how long a block takes, beside ours: docs/comparison/tensor.md."""
