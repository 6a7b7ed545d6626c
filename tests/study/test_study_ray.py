# SPDX-License-Identifier: Apache-2.0
"""Ray runs a study's cells, and loses none with a worker; needs the extra `ray`, in a separate environment."""

from pathlib import Path

import pytest

from study_processes import Killer, made, statuses
from viticulture.study.clusters import run_on_ray

pytest.importorskip("ray")


def test_a_lost_ray_workers_cell_is_retried(tmp_path: Path) -> None:
    import ray

    study, said = made(tmp_path / "s", 2, epochs=8), list[str]()
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        with Killer(study) as killer:
            run_on_ray(study, "local", said.append)
    finally:
        ray.shutdown()
    assert killer.killed
    assert statuses(study) == ["finished"] * 2
    assert sum(words.startswith("[") for words in said) == 2
    assert not list((study.path / "failures").glob("*"))
