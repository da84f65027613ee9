"""Requests that other processes leave in a run's folder."""

import os

from rookery.runs.control import FOLDER, send_request, take_requests


def test_requests_are_taken_once_and_oldest_first(tmp_path):
    assert take_requests(tmp_path) == []
    for second, request in enumerate(["stop", "video", "checkpoint", "video"]):
        send_request(tmp_path, request)
        os.utime(tmp_path / FOLDER / request, (second, second))
    assert take_requests(tmp_path) == ["stop", "checkpoint", "video"]
    assert take_requests(tmp_path) == []


def test_files_of_other_names_are_left_alone(tmp_path):
    send_request(tmp_path, "watch_on")
    other = tmp_path / FOLDER / "canary"
    other.touch()
    assert take_requests(tmp_path) == ["watch_on"]
    assert other.exists()
