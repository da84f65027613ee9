"""The environments that tests serve can be imported by their module's name."""

import sys

from served import WORLDS

sys.path.insert(0, str(WORLDS))
