"""The models of `vime eval --checkpoints`: what the paths name, which of them one engine can hold, and their weights."""

from __future__ import annotations

import copy
import fnmatch
import itertools
import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime.config.inputs import find_model
from vime.data.prompts import encode_prompt
from vime.errors import CheckpointError, EngineError, VimeError
from vime.runtime.build import engine_dtype
from vime.train.checkpoint import MANIFEST, STEP_NAME, read_manifest

if TYPE_CHECKING:
    from vime.config.run_config import RunConfig
    from vime.engine.base import TrainableEngine
    from vime.runtime.evaluation import Evaluation
    from vime.runtime.run import Run

FLAG = "--checkpoints"
_TOKENIZER_FILES = (
    "tokenizer*",
    "*.jinja",
    "vocab*",
    "merges*",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "*.tiktoken",
)
_NOT_THE_MODEL = ("transformers_version", "_name_or_path")
"""Keys of config.json that say who wrote it."""


@dataclass(frozen=True)
class Model:
    """One model to evaluate: its folder, what it is called in a table, and its step in metrics.jsonl."""

    path: Path
    name: str
    step: int


def find_models(paths: Sequence[str]) -> list[Model]:
    """The models that `--checkpoints` names, in the order given and each once.

    A path is a checkpoint, a folder of checkpoints or a run folder (all in it, oldest first), or a model in Hugging Face
    format. Every file of every checkpoint is verified. Raises CheckpointError that names all that cannot be used.
    """
    found: dict[Path, int | None] = {}
    hub_names: dict[Path, str] = {}
    faults: list[VimeError] = []
    for given in paths:
        try:
            folders = _expand(given)
        except VimeError as error:
            faults.append(error)
            continue
        if not Path(given).expanduser().exists():
            hub_names[folders[0]] = given
        for folder in folders:
            if folder.resolve() in {path.resolve() for path in found}:
                continue
            try:
                found[folder] = _rollouts_of(folder)
            except VimeError as error:
                faults.append(error)
    if faults:
        more = [f"; also {error.message.removeprefix(f'{FLAG} ')}" for error in faults[1:]]
        raise CheckpointError(f"{FLAG}: {faults[0].message.removeprefix(f'{FLAG} ')}{''.join(more)}", hint=faults[0].hint)
    steps = list(found.values())
    known = [step for step in steps if step is not None]
    if len(known) != len(steps) or known != sorted(set(known)):
        known = list(range(len(steps)))
    return [Model(path, name, step) for path, name, step in zip(found, _names(list(found), hub_names), known, strict=True)]


def _expand(given: str) -> list[Path]:
    if not given.strip():
        raise CheckpointError("an empty word stands where a path is expected", hint="is a variable of the shell empty?")
    folder = Path(given).expanduser()
    if (folder / MANIFEST).is_file() or (folder / "config.json").is_file():
        return [folder]
    for root in (folder, folder / "checkpoints"):
        steps = sorted(
            (int(match[1]), path)
            for path in (root.iterdir() if root.is_dir() else ())
            if path.is_dir() and (match := STEP_NAME.fullmatch(path.name))
        )
        if steps:
            return [path for _, path in steps]
    if folder.is_dir():
        raise CheckpointError(
            f"{given}: neither a model nor a checkpoint, and no checkpoint is in it",
            hint="name checkpoints/step_N folders, a run folder that has some, or model folders in Hugging Face format",
        )
    return [find_model(given, FLAG)]


def _rollouts_of(folder: Path) -> int | None:
    """The finished rollouts of a checkpoint, all of whose files are there and right; None for a plain model."""
    step_folder = STEP_NAME.fullmatch(folder.name) and folder.parent.name == "checkpoints"
    rollouts = read_manifest(folder).get("rollout_id") if (folder / MANIFEST).is_file() or step_folder else None
    find_model(str(folder), FLAG)
    return rollouts


def _names(paths: Sequence[Path], hub_names: Mapping[Path, str]) -> list[str]:
    """The paths without the folders that they have in common; a model of the hub by its name there."""
    full = [path.absolute() for path in paths]
    local = [path.parent for path, given in zip(full, paths, strict=True) if given not in hub_names]
    common = os.path.commonpath(local) if local else ""
    return [hub_names.get(given) or os.path.relpath(path, common) for path, given in zip(full, paths, strict=True)]


def in_one_engine(models: Sequence[Model]) -> list[list[Model]]:
    """The models in runs of neighbours that differ in their weights only."""
    groups: list[list[Model]] = []
    last: Any = None
    for model in models:
        key = _all_but_weights(model.path)
        if groups and key is not None and key == last:
            groups[-1].append(model)
        else:
            groups.append([model])
        last = key
    return groups


def _all_but_weights(folder: Path) -> Any:
    """What has to be equal for weights to be exchanged: architecture, tokenizer, and the tensors by name, type and shape.

    None where weights cannot be exchanged: quantised ones, and those that are not safetensors.
    """
    files = _weight_files(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not files or "quantization_config" in config:
        return None
    tensors = {name: (entry["dtype"], entry["shape"]) for file in files for name, entry in _header(file).items() if name != "__metadata__"}
    names = sorted(path.name for path in folder.iterdir() if any(fnmatch.fnmatch(path.name, pattern) for pattern in _TOKENIZER_FILES))
    tokenizer = {name: (folder / name).read_bytes() for name in names}
    return {key: value for key, value in config.items() if key not in _NOT_THE_MODEL}, tensors, tokenizer


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model: those of its index, else all but a second copy in another layout."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))]
    return [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("consolidated")]


def _header(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return json.loads(stream.read(int.from_bytes(stream.read(8), "little")))


def _weights(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for file in _weight_files(folder):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping: it has no __iter__
                yield name, tensors.get_tensor(name)


class ModelSwitch:
    """Puts one model after another into the engine of a run, which began with the first of them.

    Every evaluation starts as it would alone: plugins get the state back that they had before the first. The first
    exchange is checked, and an engine that does not hold the new weights afterwards is an EngineError.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._state = copy.deepcopy(run.plugins.state_dict())
        self._before: Evaluation | None = None
        self._exchanges = 0

    def evaluate(self, model: Model) -> Evaluation:
        run, self._run.rollout_id = self._run, model.step
        run.console.info(f"checkpoint {model.path}")
        if self._before is not None:
            assert run.engine is not None, "an evaluation has an engine"
            self._exchanges += 1
            run.engine.update_weights(_weights(model.path), self._exchanges)
            if self._exchanges == 1:
                with run.console.phase("checking that the engine has the new weights"):
                    prompts = [row.prompt for data in run.datasets for row in itertools.islice(data.rows, 8)]
                    verify_weights(run.config, run.engine, model.path, self._before.probe, prompts)
                run.engine.update_weights(_weights(model.path), self._exchanges)  # without what the check left in the prefix cache
            run.plugins.load_state_dict(copy.deepcopy(self._state))
        self._before = run.evaluate()
        return self._before


def verify_weights(
    config: RunConfig, engine: TrainableEngine, model: Path, probe: Sequence[tuple[list[int], int]], prompts: Sequence[Any]
) -> None:
    """Compare the engine's log-probs of the probe's responses, or of the prompts where it has none, with those of transformers.

    That names and shapes are right does not prove that the engine uses the weights: it may hold a packed copy of some.
    Raises EngineError where they differ.
    """
    import torch

    from vime.train.model_loading import load_model
    from vime.train.policy_model import PolicyModel
    from vime.train.weights import engine_scores

    probe = [(tokens, length) for tokens, length in probe if len(tokens) < engine.max_model_len]
    if not probe:  # the samples of a function of the user's own may have no tokens
        encoded = [encode_prompt(engine.tokenizer, prompt) for prompt in prompts]
        probe = [(tokens, len(tokens) - 1) for tokens in encoded if 1 < len(tokens) < engine.max_model_len]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = engine_dtype(config, str(model), on_cpu=device.type == "cpu")
    reference = load_model(str(model), getattr(torch, dtype), config.attn_implementation, device).eval()
    policy = PolicyModel(reference, temperature=1.0)
    expected: list[Any] = []
    with torch.no_grad():
        for tokens, length in probe:
            first, ids = len(tokens) - length, torch.tensor([tokens], device=device)
            expected.append(policy(ids, torch.arange(first - 1, len(tokens) - 1, device=device), ids[0, first:])[0].cpu())
    for who, found in engine_scores(engine, [tokens for tokens, _ in probe]).items():
        differences: list[float] = []
        for (tokens, length), scores, log_probs in zip(probe, found, expected, strict=True):
            differences += (log_probs - torch.tensor(scores[len(tokens) - length - 1 :])).abs().tolist()
        mean = statistics.fmean(differences) if differences else math.inf
        if not mean <= (config.check_weights_tolerance or (1e-3 if dtype == "float32" else 5e-2)):
            raise EngineError(
                f"{who} does not hold the weights of {model} after they were exchanged: log-probs of {len(differences)} tokens "
                f"differ by {mean:.3g} in the mean from those of transformers",
                hint="evaluate these models one at a time: --hf-checkpoint MODEL",
            )
