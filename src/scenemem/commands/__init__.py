"""The commands: thin functions that open data, call the library and print; one module per command."""
