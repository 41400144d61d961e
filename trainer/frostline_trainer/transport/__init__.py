"""Process groups, messages and collectives over gloo and NCCL, and what waits on them made to end."""
