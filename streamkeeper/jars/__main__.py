"""``python -m streamkeeper.jars``: see :mod:`streamkeeper.jars.folder`."""

import sys

from streamkeeper.jars.folder import main

sys.exit(main())
