"""Faults on purpose: damaged and hostile files for every reader, and kills at random moments."""
