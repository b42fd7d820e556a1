import sys

import pytest

from maskrl.bench.sweeping import bench_sweep
from maskrl.machine import cores_allowed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="cores are given by affinity")
def test_a_sweep_is_timed_on_one_core_and_on_all():
    shown: list[str] = []
    small = ["agent.warmup_decisions=60", "evaluation.episodes=1"]
    result = bench_sweep("toy/reach", small, decisions=5, tell=shown.append)
    rows = result.values["sweeps"]
    assert [row["cores"] for row in rows] == [cores for cores in (1, 2, 4, 8, 16, 32, 64) if cores <= cores_allowed()]
    assert len(shown) == len(rows)
    assert rows[0]["of_ideal"] == 1
    for row in rows:
        assert row["runs"] == 2 * row["cores"]
        assert row["of_ideal"] == pytest.approx(row["runs_an_hour"] / row["cores"] / rows[0]["runs_an_hour"])
        assert 50e6 < row["bytes_of_a_run"] < 5e9  # torch alone takes more than 50 MB


def test_a_recipe_that_is_not_known_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match=r"toy/reech.*toy/reach"):
        bench_sweep("toy/reech", [], decisions=5, tell=lambda text: None)
