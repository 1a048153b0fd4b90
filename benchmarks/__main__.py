"""`python -m benchmarks`."""

from benchmarks.suite.command import main

raise SystemExit(main())
