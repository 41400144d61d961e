"""Process groups, messages and collectives over gloo and NCCL, all of them interruptible."""
