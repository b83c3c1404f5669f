"""The Structured Scene Memory as batched tensors."""
