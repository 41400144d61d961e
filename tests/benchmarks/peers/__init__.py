"""Other systems beside ours, each as its own documentation has it: torchrun's restart, torchft's managed all-reduce,
in-process restart by NVIDIA's resiliency extension, DLRover's agent."""
