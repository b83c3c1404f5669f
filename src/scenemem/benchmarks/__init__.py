"""Speed, counted arithmetic and memory of the whole system; benchmarks/README.md has the method."""
