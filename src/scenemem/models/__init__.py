"""Neural modules only, one equation each; they know tensors, not episodes."""
