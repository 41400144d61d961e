"""Other systems beside ours, each as its own documentation has it: torchrun's restart, torchft's managed all-reduce."""
