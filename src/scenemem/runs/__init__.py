"""Run machinery; what a caller can put right is a ``UserError``, bad content of a file a ``DataError``."""
