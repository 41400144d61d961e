"""PipeTransformer's published tables beside what our simulator says of the same cluster: docs/comparison/published.md."""
