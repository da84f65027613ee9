"""An environment that only the process which starts a run can import."""

import os

if "ROOKERY_TEST_DRIVER" not in os.environ:
    raise ImportError("the simulator is not installed on this node")

from slow_worlds import Slow

Only = Slow
