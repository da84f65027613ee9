"""How segments of actors elsewhere come into a replay memory."""

from __future__ import annotations

from rookery.backends.ray.messages import Origin
from rookery.data.steps import Segment
from rookery.memory.replay import Replay


class Intake:
    """Stores segments, and cuts a writer's rows wherever a segment between them is missing.

    Segments go missing with an actor that dies, with the node they lie on, or with others of their
    round. Whoever stores the next one is the first to know for certain that none comes between:
    the driver may have sent it on before it hears that the one before it was lost.
    """

    def __init__(self, memory: Replay):
        self.memory = memory
        self.newest: dict[int, Origin] = {}
        """The origin of each writer's last segment."""

    def add(self, segment: Segment, writer: int, origin: Origin) -> None:
        """Store a segment as the writer's newest rows."""
        if self.newest.get(writer) != origin.before:
            self.memory.cut(writer)
        self.newest[writer] = origin
        self.memory.add(segment, writer)
