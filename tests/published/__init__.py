"""PipeTransformer's published tables beside our simulator's figures for the same cluster: docs/comparison/published.md."""
