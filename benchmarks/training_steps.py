"""A training step as vime takes it and as a bare PyTorch loop does, over the same micro-batches.

`Trainer` is a GRPO step as `vime train` takes it, from the samples of a rollout to new weights, metrics included. `Bare` is
what anybody would write: the same padded micro-batches, laid out before, the model, logits of the trained tokens in
float32, their log-probs, a loss, backward, clipping and AdamW; no entropy, no metrics, no checks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from random_model import write_random_model


@dataclass(frozen=True)
class Case:
    """A model and the shape of a batch: groups x samples, with responses of up to `longest` tokens."""

    name: str
    dtype: str
    groups: int
    samples: int
    longest: int


CASES = {
    "long": Case("quickstart model, 8 x 8, up to 112 tokens", "float32", 8, 8, 112),
    "wide": Case("quickstart model, 32 x 8, up to 16 tokens", "float32", 32, 8, 16),
    "both": Case("quickstart model, 32 x 8, up to 112 tokens", "float32", 32, 8, 112),
    "short": Case("quickstart model, 8 x 8, up to 16 tokens", "float32", 8, 8, 16),
    "random": Case("60M random parameters, 4 x 8, up to 112 tokens", "float32", 4, 8, 112),
    "smollm2": Case("SmolLM2-135M, 4 x 8, up to 128 tokens", "bfloat16", 4, 8, 128),
}


def case_models(folder: Path, smollm2: str | None) -> dict[str, str]:
    """The folder of each case's model. `folder` is for the random one; without SmolLM2's its case is left out."""
    from vime.quickstart import MODEL

    models = {name: str(MODEL) for name in ("long", "wide", "both", "short")} | {"random": write_random_model(folder)}
    return models | ({"smollm2": smollm2} if smollm2 else {})


def make_groups(case: Case, vocab: int) -> list[list[Any]]:
    """Samples with random tokens and lengths, the shortest an eighth of the longest."""
    from vime.sample import Sample, Status

    generator = random.Random(0)
    groups: list[list[Any]] = []
    for group in range(case.groups):
        prompt = [generator.randrange(vocab) for _ in range(16)]
        members: list[Any] = []
        for number in range(case.samples):
            length = generator.randint(max(1, case.longest // 8), case.longest)
            sample = Sample(group_index=group, index=group * case.samples + number, tokens=list(prompt))
            tokens = [generator.randrange(vocab) for _ in range(length)]
            sample.append_response_tokens(tokens=tokens, log_probs=[-5.0] * length, meta_info={"weight_version": 0})
            sample.reward, sample.status = float(number % 2), Status.COMPLETED
            members.append(sample)
        groups.append(members)
    return groups


def make_config(case: Case, model: str) -> Any:
    from vime.config.run_config import RunConfig

    sizes = {"rollout_batch_size": case.groups, "n_samples_per_prompt": case.samples, "rollout_max_response_len": case.longest}
    return RunConfig(hf_checkpoint=model, lr=1e-6, train_dtype=case.dtype, check_weights_tolerance=1e9, **sizes)  # type: ignore[arg-type]


class Trainer:
    """vime's."""

    def __init__(self, case: Case, model: str) -> None:
        from vime.train.batch import build_train_batch
        from vime.train.deepspeed_trainer import DeepSpeedTrainer

        config = make_config(case, model)
        self.trainer = DeepSpeedTrainer(config, model)
        groups = make_groups(case, self.trainer.vocab_size)
        self.make_batch = lambda: build_train_batch(config, None, groups)

    def step(self) -> None:
        self.trainer.train(self.make_batch())


class BareModel:
    """A model and its optimizer, in a loop of a dozen lines."""

    def __init__(self, model: str, dtype: str) -> None:
        import torch

        from vime.train.model_loading import load_model

        kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
        self.model: Any = load_model(model, kind, "auto", torch.device("cpu"))
        if kind is not torch.float32:  # float32 weights beside those that compute, as in the trainer
            self.masters = [parameter.detach().float().requires_grad_() for parameter in self.model.parameters()]
        else:
            self.masters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-6, fused=True)

    def step(self, micros: list[Any]) -> None:
        import torch

        for micro in micros:
            backbone = getattr(self.model, self.model.base_model_prefix)
            layout = {name.removesuffix("_B_T").removesuffix("_B_1_T_T"): part for name, part in micro.layout.items()}
            hidden = backbone(input_ids=micro.input_ids_B_T, use_cache=False, **layout).last_hidden_state
            logits = self.model.get_output_embeddings()(hidden.reshape(-1, hidden.shape[-1])[micro.select_K]).float()
            log_probs = torch.log_softmax(logits, dim=-1).gather(-1, micro.targets_K[:, None]).squeeze(-1)
            ratio = (log_probs - log_probs.detach()).exp()
            (-(ratio * micro.advantages_K) * micro.weights_K).sum().backward()
        parameters = list(self.model.parameters())
        if self.masters[0] is not parameters[0]:
            for master, parameter in zip(self.masters, parameters, strict=True):
                master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.masters[0] is not parameters[0]:
            with torch.no_grad():
                for master, parameter in zip(self.masters, parameters, strict=True):
                    parameter.copy_(master)


class Bare:
    """What anybody would write: the padded rows of a case through a `BareModel`."""

    def __init__(self, case: Case, model: str) -> None:
        import torch

        from vime.train.batch import build_train_batch
        from vime.train.losses import token_weights
        from vime.train.microbatch import collate, plan_micro_batches, trained_rows

        self.bare = BareModel(model, case.dtype)
        config, cpu = make_config(case, model), torch.device("cpu")
        batch = build_train_batch(config, None, make_groups(case, self.bare.model.config.vocab_size))
        rows = trained_rows(batch, 0, cpu)
        weights = token_weights(batch.loss_masks, batch.rollout_ids, "sample")
        plan = plan_micro_batches([row.input_length for row in rows], max_tokens=config.max_tokens_per_gpu, rows_each=None)[0]
        self.micros = [collate([rows[p] for p in picked], [weights[p] for p in picked], cpu) for picked in plan]

    def step(self) -> None:
        self.bare.step(self.micros)
