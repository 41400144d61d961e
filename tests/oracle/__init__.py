"""The reference of every exactness test: plain PyTorch over unsplit Hugging Face models. Imports nothing of the trainer."""
