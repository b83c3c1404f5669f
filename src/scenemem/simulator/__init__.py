"""A batched panoramic environment on the world's tables, experts, and Gymnasium adapters."""
