"""Makes the environments in worlds/ and the helpers here importable."""

import sys
from pathlib import Path

from served import WORLDS

sys.path[:0] = [str(WORLDS), str(Path(__file__).parent)]
