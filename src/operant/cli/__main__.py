"""`python -m operant.cli`."""

import sys

from operant.cli import main

sys.exit(main())
