"""The checks of process_all_samples: it looks at everything and changes nothing that is trained on."""

from __future__ import annotations

import asyncio
from typing import Any

from vime.plugins.loading import describe
from vime.rollout.unchanged import Snapshot
from vime.sample import Sample, Status
from vime.testing.checks.base import Bench, Check, fail, skip
from vime.testing.checks.sample_filter import batch, extreme_batch, members
from vime.testing.factories import fan_out_group, finished_group, make_group

LOOK = "look, count and log; work on copies: sorted(all_samples, ...)"


class Prompts:
    """A data source that has what every data source has."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """`num_samples` groups that wait for generation."""
        return [make_group(4, group_index=number) for number in range(num_samples)]

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take groups back."""

    def save(self, rollout_id: int) -> None:
        """Write the state."""

    def load(self, rollout_id: int | None = None) -> None:
        """Read the state."""

    def __len__(self) -> int:
        return 100


class AllSamplesBench:
    """A freshly loaded process_all_samples, called as the run calls it."""

    def __init__(self, bench: Bench, **overrides: Any) -> None:
        self.config = bench.config(**overrides)
        self.function = bench.function(bench.load(self.config))
        self.who = f"{self.function.label}: process_all_samples"

    def show(self, groups: list[list[Sample]]) -> Any:
        """What the hook returns for all groups of a rollout."""
        return asyncio.run(self.function.acall(args=self.config, all_samples=groups, data_source=Prompts()))

    def attempt(self, groups: list[list[Sample]], what: str, hint: str) -> None:
        """The same; fails, naming what kind of rollout it was, for an exception."""
        try:
            self.show(groups)
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises
            fail(f"{self.who} raised {describe(error)} for {what}", hint)

    def usable(self) -> AllSamplesBench:
        """Skip the check where an ordinary rollout makes it raise, which all-samples-runs reports."""
        try:
            self.show(batch())
        except Exception:  # noqa: BLE001 - whatever a plugin raises
            skip("an ordinary rollout makes it raise")
        return self


def runs(bench: Bench) -> None:
    """The hook takes the list of all groups, the kept ones and the dropped ones."""
    AllSamplesBench(bench).attempt(batch(), "a list of three groups", "`all_samples` is a list of groups")


def unchanged(bench: Bench) -> None:
    """Of the samples only metadata and train_metadata may change: rewards, tokens, masks and flags are final."""
    hook = AllSamplesBench(bench).usable()
    for groups in (batch(), extreme_batch()):
        before = Snapshot([sample for group in groups for sample in group], hook.config)
        hook.show(groups)
        before.check(hook.function.label, "process_all_samples")


def keeps_groups(bench: Bench) -> None:
    """The groups and their samples are the same afterwards, in the same order."""
    hook = AllSamplesBench(bench).usable()
    for groups in (batch(), extreme_batch()):
        before = members(groups)
        hook.show(groups)
        if members(groups) != before:
            fail(f"{hook.who} changed the groups: the same groups, samples and order are expected afterwards", LOOK)


def odd_rollouts(bench: Bench) -> None:
    """Rollouts without any group, with failed samples, empty responses or several samples per rollout do not make it raise."""
    hook = AllSamplesBench(bench).usable()
    hook.attempt([], "a rollout without groups", "look at the number of samples before you divide by it")
    failed = finished_group([1.0, None], statuses=[Status.COMPLETED, Status.FAILED])
    hook.attempt([failed], "a group in which a sample failed", "samples with the status FAILED have no reward")
    hook.attempt([finished_group([0.0], responses=[""]), fan_out_group()], "groups of other sizes", "groups differ in size")


def dict_rewards(bench: Bench) -> None:
    """Dict rewards under a reward key do not make the hook raise."""
    groups = batch()
    for sample in (sample for group in groups for sample in group):
        sample.reward = {"length": 3.0, "acc": sample.reward}
    AllSamplesBench(bench).usable()
    hook = AllSamplesBench(bench, reward_key="acc")
    hook.attempt(groups, "dict rewards under --reward-key acc", "read rewards by sample.get_reward_value(args)")


HOOK = "process_all_samples"
CHECKS: tuple[Check, ...] = (
    Check("all-samples-runs", HOOK, runs),
    Check("all-samples-unchanged", HOOK, unchanged),
    Check("all-samples-keeps-groups", HOOK, keeps_groups),
    Check("all-samples-odd-rollouts", HOOK, odd_rollouts),
    Check("all-samples-dict-rewards", HOOK, dict_rewards),
)
