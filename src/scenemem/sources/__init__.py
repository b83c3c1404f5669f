"""Public files that SceneMem can use: where they are, how they are fetched, what is made of them."""
