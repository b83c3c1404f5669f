"""How well it was done: metrics as pure functions, and scoring of result files."""
