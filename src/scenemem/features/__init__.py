"""View features: the memory-mapped store, converters, and features built from object annotations."""
