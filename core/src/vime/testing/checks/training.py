"""Checks of the hooks inside training. They need torch, and skip where it is not installed."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vime.testing.checks.base import Bench, Check, CheckFailed, fail, skip
from vime.testing.factories import finished_group

if TYPE_CHECKING:
    from torch import Tensor

    from vime.train.batch import TrainBatch
    from vime.train.microbatch import MicroBatch, Row
    from vime.train.objective import LossResult

POSTPROCESS, ADVANTAGES = "rollout_data_postprocess", "compute_advantages"
LOSS, WEIGHTS, REDUCER = "policy_loss", "importance_weights", "pg_loss_reducer"
RESPONSES = ("12", "a longer one", "3", "four")


def _rows(bench: Bench) -> tuple[Any, TrainBatch, list[Row]]:
    """The configuration, and the rows of two groups with everything that training hooks may be shown."""
    if find_spec("torch") is None:
        skip("it needs torch, which is not installed: pip install 'vime[train]'")
    import torch

    from vime.train.batch import build_train_batch
    from vime.train.microbatch import trained_rows

    options: dict[str, Any] = {"rollout_batch_size": 2, "n_samples_per_prompt": 4} | dict(bench.subject.args)
    options |= {LOSS: {"loss_type": "custom_loss"}, WEIGHTS: {"use_tis": True}}.get(bench.hook, {})
    config = bench.config(**options)
    groups = [finished_group((1.0, 0.0, 0.0, 1.0), group_index=number, responses=RESPONSES) for number in range(2)]
    groups[1][1].loss_mask = [1, 0] * 6 + [1]
    batch = build_train_batch(config, None, groups)
    rows = trained_rows(batch, 1, torch.device("cpu"))
    for row in rows:
        generator = torch.Generator().manual_seed(row.index)
        row.old_log_probs_M = -torch.rand(len(row.positions), generator=generator) - 0.1
        row.ref_log_probs_M = row.old_log_probs_M - 0.1
    return config, batch, rows


def postprocess(bench: Bench) -> None:
    """It keeps an entry for each sample, finite advantages, and masks that only lose tokens."""
    _call_data_hook(bench)


def advantages(bench: Bench) -> None:
    """It sets advantages and returns: for each sample, as many finite numbers as its response has tokens."""
    data = _call_data_hook(bench)
    if "returns" not in data:
        fail("compute_advantages set no rollout_data['returns']", hint="set both; they are the same without a critic")


def _call_data_hook(bench: Bench) -> dict[str, Any]:
    config, batch, rows = _rows(bench)
    from vime.train.rollout_data import apply_rollout_data, to_rollout_data

    function = bench.function(bench.load(config))
    data = to_rollout_data(batch, rows)
    arguments = {"rollout_id": 0}
    if bench.hook == ADVANTAGES:
        del data["advantages"], data["returns"]
        arguments = {}
    function.call(args=config, rollout_data=data, **arguments)
    apply_rollout_data(function, data, batch, rows)
    return data


def data_kept(bench: Bench) -> None:
    """Tokens, log-probs and lengths stay as they are."""
    config, batch, rows = _rows(bench)
    from vime.train.rollout_data import to_rollout_data

    data, before = to_rollout_data(batch, rows), to_rollout_data(batch, rows)
    arguments = {"rollout_id": 0} if bench.hook == POSTPROCESS else {}
    if bench.hook == ADVANTAGES:
        del data["advantages"], data["returns"]
    try:
        bench.function(bench.load(config)).call(args=config, rollout_data=data, **arguments)
    except Exception:  # noqa: BLE001 - reported by the check of the result
        skip("it raises, see the check of its result")
    for name in ("tokens", "total_lengths", "response_lengths", "sample_indices", "rollout_log_probs", "log_probs"):
        was, now = before.get(name), data.get(name)
        if was is not None and (now is None or len(was) != len(now) or any(list(one) != list(other) for one, other in _pairs(was, now))):
            fail(f"it changed rollout_data[{name!r}]", hint="change advantages, returns and loss_masks; training takes nothing else back")


def _pairs(was: list[Any], now: list[Any]) -> list[tuple[Any, Any]]:
    return [(one, other) if hasattr(one, "__len__") else ([one], [other]) for one, other in zip(was, now, strict=True)]


def _loss(bench: Bench, *, shift: float = 0.1, part: slice = slice(None)) -> tuple[LossResult, Tensor, MicroBatch]:
    """The loss of a micro-batch of these rows through the hook, and the log-probs that it is differentiated by."""
    config, _, rows = _rows(bench)
    import torch

    from vime.train.microbatch import collate
    from vime.train.objective import Objective

    picked = rows[part]
    micro = collate(picked, [1.0 / len(rows)] * len(picked), torch.device("cpu"))
    assert micro.old_log_probs_K is not None
    log_probs_K = (micro.old_log_probs_K + shift).requires_grad_()
    entropy_K = torch.full_like(micro.old_log_probs_K, 1.5).requires_grad_()
    before = {name: value.clone() for name, value in vars(micro).items() if hasattr(value, "clone")}
    result = Objective(config, bench.load(config))(micro, log_probs_K, entropy_K)
    changed = [name for name, value in before.items() if not torch.equal(value, getattr(micro, name))]
    if changed:
        fail(f"it changed its input {changed[0].removesuffix('_K')} in place", hint="use x = x * y, not x *= y or x.clamp_(...)")
    return result, log_probs_K, micro


def loss(bench: Bench) -> None:
    """The result has the shapes that training expects."""
    _loss(bench)


def finite(bench: Bench) -> None:
    """The loss and its gradient are finite, also where policy and engine differ much."""
    if find_spec("torch") is None:
        skip("it needs torch, which is not installed: pip install 'vime[train]'")
    import torch

    for shift in (0.0, 0.1, -12.0):
        try:
            result, log_probs_K, _ = _loss(bench, shift=shift)
        except (Exception, CheckFailed):  # noqa: BLE001 - reported by the check of the result
            skip("there is no loss to look at, see the check of its result")
        if not bool(torch.isfinite(result.loss)):
            fail(
                f"the loss is {result.loss.item()} where log-probs differ by {shift:g} from the old ones",
                hint="clamp ratios and logarithms",
            )
        if not result.loss.requires_grad:
            fail("the loss has no gradient", hint="compute it from log_probs, without .detach(), .item() or torch.no_grad()")
        (gradient,) = torch.autograd.grad(result.loss, log_probs_K, allow_unused=True)
        if gradient is None:  # pyright: ignore[reportUnnecessaryComparison]
            fail("the loss does not depend on log_probs", hint="compute it from log_probs, without .detach(), .item() or torch.no_grad()")
        if not bool(torch.isfinite(gradient).all()):
            fail(f"a gradient is not finite where log-probs differ by {shift:g} from the old ones", hint="clamp ratios and logarithms")


def adds_up(bench: Bench) -> None:
    """It is a sum over rows: those of two micro-batches add up to that of both together."""
    try:
        whole, first, second = (_loss(bench, part=part)[0].sums["pg_loss"].item() for part in (slice(None), slice(3), slice(3, None)))
    except (Exception, CheckFailed):  # noqa: BLE001 - reported by the check of the result
        skip("there is no loss to look at, see the check of its result")
    if not math.isfinite(whole):
        skip("the loss is not finite, see the check of that")
    if not abs(first + second - whole) <= 1e-5 * (abs(first) + abs(second) + abs(whole)):
        fail(
            f"the losses of two micro-batches do not add up to that of both: {first:.4g} and {second:.4g}, together {whole:.4g}",
            hint="return a sum over the rows; it is divided by the rollouts of the step afterwards",
        )


CHECKS: tuple[Check, ...] = (
    Check("rollout-data-result", POSTPROCESS, postprocess),
    Check("rollout-data-kept", POSTPROCESS, data_kept),
    Check("advantages-result", ADVANTAGES, advantages),
    Check("advantages-kept", ADVANTAGES, data_kept),
    Check("loss-result", LOSS, loss),
    Check("loss-finite", LOSS, finite),
    Check("importance-weights-result", WEIGHTS, loss),
    Check("importance-weights-finite", WEIGHTS, finite),
    Check("reducer-result", REDUCER, loss),
    Check("reducer-finite", REDUCER, finite),
    Check("reducer-adds-up", REDUCER, adds_up),
)
