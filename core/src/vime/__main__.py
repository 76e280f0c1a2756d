"""`python -m vime` is `vime`."""

from vime.cli.app import main

raise SystemExit(main())
