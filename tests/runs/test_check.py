"""`maskrl check`: what is wrong with an environment, before anybody trains on it."""

import mmap
import multiprocessing
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import maskrl
import own_env
from maskrl.envs import consent
from maskrl.runs.check import Finding, contact_sheet

FILE = Path(own_env.__file__)


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """What is trusted stays in the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(consent.INHERITED, "")


def found(factory: Any) -> dict[str, Finding]:
    return {finding.what: finding for finding in maskrl.check_env(factory)[2]}


def test_a_good_environment_has_nothing_to_mend_and_a_sheet_shows_it(tmp_path):
    recipe, sample, findings = maskrl.check_env(f"{FILE}:make_env")
    assert recipe is not None
    assert sample is not None
    assert {finding.what: finding for finding in findings}["determinism"].verdict == "good"
    assert [finding for finding in findings if finding.verdict == "bad"] == []
    contact_sheet(recipe, sample, tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (3 * 164, 8 * 164, 3)
    frames, hidden = sheet[164:328], sheet[328:]
    assert (hidden == 0).all(axis=-1).sum() > (frames == 0).all(axis=-1).sum() + 1000


class Random(own_env.Dot):
    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.x = int(np.random.default_rng().integers(50))
        return self._observed(), found[1]


class Still(own_env.Dot):
    def _picture(self):
        return np.full((40, 60, 3), 7, np.uint8)


class Short(own_env.Dot):
    def step(self, action):
        obs, _, _, ended, info = super().step(action)
        return obs, 1e6, ended, False, info


class Uneven(own_env.Dot):
    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 101.0 if self.steps == 20 else -1.0, *rest


class Leaks(own_env.Dot):
    kept: list[Any] = []  # noqa: RUF012

    def step(self, action):
        pages = mmap.mmap(-1, 1 << 16)  # fresh pages: an array might get memory that the tests before have freed
        pages.write(bytes(1 << 16))
        self.kept.append(pages)
        print("step")
        return super().step(action)


def test_what_is_wrong_is_seen():
    assert found(Random)["determinism"].verdict == "look"
    assert "resume is not exact" in found(Random)["determinism"].seen
    still = found(Still)
    assert (still["motion"].verdict, still["pixel values"].verdict) == ("bad", "look")
    short = found(lambda: Short(length=10))
    assert short["episodes"].seen.endswith("steps past an end do not count in clips of 16")
    assert "truncated, not terminated" in short["ends"].fix
    assert "env.reward_scale=5e-06" in short["rewards"].fix
    uneven = found(lambda: Uneven(actions=gym.spaces.Discrete(3)))["rewards"]
    assert uneven.seen == "-1 to 101 per decision, 0.0% are 0; training clips them to ± 1"
    assert uneven.fix.endswith("env.reward_scale=0.01.")
    leaks = found(Leaks)
    assert leaks["memory"].verdict == "look"
    assert leaks["prints"].verdict == "look"


def test_one_that_hangs_or_ends_its_process_is_told(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import os, time\ndef hangs():\n    time.sleep(60)\ndef crashes():\n    os._exit(7)\n")
    hangs, crashes = (maskrl.check_env(f"{bad}:{name}", timeout=30)[2][0] for name in ("hangs", "crashes"))
    assert "no answer for 30 seconds" in hangs.seen
    assert "exit code 7" in crashes.seen


class Ends(own_env.Dot):
    def step(self, action):
        if multiprocessing.parent_process() is None:
            raise AssertionError("played in the caller's process")
        os._exit(7)


def test_a_callable_plays_in_a_process_of_its_own_if_another_can_import_it():
    assert "exit code 7" in found(Ends)["environment"].seen
    good = found(own_env.Dot)
    assert "process" not in good
    assert good["determinism"].verdict == "good"
    here = found(lambda: own_env.Dot())["process"]
    assert here.verdict == "look"
    assert "played in this process" in here.seen
    assert "FILE.py:FUNCTION" in here.fix
