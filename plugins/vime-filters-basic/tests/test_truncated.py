"""truncated removes what hit the length limit from training, and nothing else."""

import pytest

from vime.api import Sample, Status
from vime.config.run_config import RunConfig
from vime.plugins.manager import PluginManager

NUM_GPUS = 0


def test_truncated_samples_are_marked_and_stay():
    groups = [[Sample(status=Status.TRUNCATED), Sample(status=Status.COMPLETED)], [Sample(status=Status.COMPLETED, remove_sample=True)]]
    config = RunConfig(plugin=["truncated"])
    (function,) = PluginManager.load(config).implementations("rollout_sample_filter")
    assert function.call(args=config, samples=groups) is None
    assert [[sample.remove_sample for sample in group] for group in groups] == [[True, False], [True]]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
