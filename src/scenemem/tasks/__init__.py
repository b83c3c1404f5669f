"""What has to be done: episode sets, vocabulary, seeded batches, the path pool and the R4R builder."""
