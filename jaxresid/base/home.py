"""The folder where this package is installed."""

import os

# With the separator behind it.
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
