"""Every format, written and run, for every kind of policy: takes minutes to compile."""

from __future__ import annotations

import pytest
from test_export_step import CASES, make_case

from rookery.export.export import trace_step
from rookery.export.formats import FORMATS
from rookery.export.step import Step, interface_of
from rookery.export.verify import batch_sizes, compare_with_recording, record

pytestmark = pytest.mark.long


@pytest.mark.parametrize("case", CASES)
def test_every_format_decides_like_the_live_policy(case, tmp_path):
    policy, env = make_case(case)
    step = Step(policy.algorithm, env)
    interface = interface_of(step)
    recording = record(policy, env, seed=3)
    env.close()
    program = trace_step(step)
    for form in FORMATS.values():
        path = tmp_path / form.file
        form.write(program, interface, path)
        run = form.load(path)
        for batch in batch_sizes(recording):
            assert max(compare_with_recording(run, interface, recording, batch).values()) < 1e-5
