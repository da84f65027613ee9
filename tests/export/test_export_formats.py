"""Every format, written and run, for every kind of policy: minutes of compiling."""

from __future__ import annotations

import pytest
from test_export_step import CASES, made

from rookery.export.export import traced
from rookery.export.formats import FORMATS
from rookery.export.interface import interface_of
from rookery.export.step import Step
from rookery.export.verify import batch_sizes, record, replay

pytestmark = pytest.mark.long


@pytest.mark.parametrize("case", CASES)
def test_every_policy_in_every_format(case, tmp_path):
    policy, env = made(case)
    step = Step(policy.algorithm, env)
    interface = interface_of(step)
    recording = record(policy, env, seed=3)
    env.close()
    program = traced(step)
    for form in FORMATS.values():
        path = tmp_path / form.file
        form.write(program, interface, path)
        run = form.load(path)
        for batch in batch_sizes(recording):
            assert max(replay(run, interface, recording, batch).values()) < 1e-5
