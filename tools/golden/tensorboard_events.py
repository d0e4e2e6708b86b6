"""Reads the committed event file with TensorBoard's own reader.

    .venv/golden/bin/pip install tensorboard
    .venv/golden/bin/python tools/golden/tensorboard_events.py

The test `logs::event_file_is_read_by_tensorboard` of shardax-train compares what it writes with that file, byte by
byte, so that this needs to be run only when the file changes (SHARDAX_TEST_UPDATE_SNAPSHOTS=1 writes it).
"""

import math
import pathlib

from tensorboard.backend.event_processing import event_accumulator, event_file_loader

FILE = pathlib.Path(__file__).parents[2] / "crates/shardax-train/tests/golden/events.out.tfevents.golden"

events = list(event_file_loader.LegacyEventFileLoader(str(FILE)).Load())
assert [e.step for e in events] == [0, 1, 1, 300, 300, 1 << 40], events
assert all(e.wall_time == 1_700_000_000.25 for e in events)
assert events[0].file_version == "brain.Event:2"
assert [e.session_log.status for e in events] == [0, 1, 0, 0, 1, 0]
first = {v.tag: v.simple_value for v in events[2].summary.value}
assert first == {"loss": 2.5, 'test/"accuracy"': 0.5}, first
second = {v.tag: v.simple_value for v in events[3].summary.value}
assert math.isnan(second["loss"]) and abs(second["état"] / -1e30 - 1) < 1e-6, second

# The points drawn: the session that began at 300 removed the earlier ones from there on.
accumulator = event_accumulator.EventAccumulator(str(FILE), size_guidance={"scalars": 0}, purge_orphaned_data=True)
accumulator.Reload()
scalars = {tag: [(s.step, s.value) for s in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
assert scalars["loss"] == [(1, 2.5)], scalars
assert scalars['test/"accuracy"'] == [(1, 0.5)], scalars
print("TensorBoard reads", len(events), "events:", scalars)
