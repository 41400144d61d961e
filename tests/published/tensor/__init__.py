"""The layouts of tensor parallelism by traffic and seconds of a block, beside ours: docs/comparison/tensor.md."""
