"""The environments that tests serve can be imported by their module's name."""

import sys
from pathlib import Path

from served import WORLDS

sys.path[:0] = [str(WORLDS), str(Path(__file__).parent)]
