"""``python -m scenemem`` is the ``scenemem`` command."""

from scenemem.cli import main

main()
