"""Other systems, each used as its own documentation describes: torchrun's restart, torchft's managed all-reduce,
in-process restart by NVIDIA's resiliency extension, DLRover's agent."""
