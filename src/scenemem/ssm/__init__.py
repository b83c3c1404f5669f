"""The paper's agent: a Structured Scene Memory, reading it, deciding over it, and the ablations."""
