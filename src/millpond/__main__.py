"""`python -m millpond`: the same as the command `millpond`."""

from .cli.main import main

raise SystemExit(main())
