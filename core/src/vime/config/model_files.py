"""Whether the files of a model folder are whole, by their headers: long before a library is loaded that would read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic_core import from_json

from vime.errors import ConfigError

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100 << 20
"""What the safetensors library accepts, in bytes."""


def check_model_files(folder: Path, where: str) -> None:
    """Raise ConfigError for the first file of a model that cannot be read. `where` begins the messages."""
    config = _json_object(folder / "config.json", where)
    if not isinstance(config.get("model_type"), str):
        raise ConfigError(f"{where}: config.json has no 'model_type'", hint="it is the file that save_pretrained writes beside the weights")
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"):
        if (folder / name).exists():
            content = _json_object(folder / name, where)
            if name.endswith("index.json"):
                _check_index(folder, content, where)
    for file in sorted(folder.glob("*.safetensors")):
        problem = _problem_of_weights(file)
        if problem is not None:
            raise ConfigError(f"{where}: {file.name} {problem}", hint=f"fetch or write {file} again")


_ARCHITECTURE = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    "tie_word_embeddings",
)


def architecture_difference(policy: Mapping[str, Any], reference: Mapping[str, Any]) -> str | None:
    """The first key of two config.json whose values differ where a reference model has to be like its policy, in words; or None."""
    for key in _ARCHITECTURE:
        if key in policy and key in reference and policy[key] != reference[key]:
            return f"its {key} is {reference[key]}, the policy's is {policy[key]}"
    return None


def check_reference(policy: Path, reference: Path, where: str) -> None:
    """Raise ConfigError for a reference model with another vocabulary or architecture than the policy's. Both folders are models."""
    difference = architecture_difference(_json_object(policy / "config.json", where), _json_object(reference / "config.json", where))
    if difference is not None:
        raise ConfigError(
            f"{where}: the reference model is not of the policy's kind: {difference}",
            hint="give an earlier state of the model, or leave it out: then it is --hf-checkpoint",
        )


def _json_object(file: Path, where: str) -> dict[str, Any]:
    try:
        content: Any = from_json(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{where}: {file.name} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {file.name} is not JSON ({error})", hint=f"fetch or write {file} again") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: {file.name} holds no JSON object", hint=f"fetch or write {file} again")
    return cast("dict[str, Any]", content)


def _check_index(folder: Path, index: dict[str, Any], where: str) -> None:
    shards = index.get("weight_map")
    if not isinstance(shards, dict):
        raise ConfigError(f"{where}: model.safetensors.index.json has no 'weight_map'", hint="fetch or write it again")
    names = sorted(set(map(str, cast("dict[str, Any]", shards).values())))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"{where}: {len(missing)} of {len(names)} weight files are missing, the first is {missing[0]}", hint="fetch the whole model"
        )


def _problem_of_weights(file: Path) -> str | None:
    """What is wrong with a safetensors file: 8 bytes with the length of its header, the header, then the tensors up to its end."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
                return f"is not a safetensors file, or cut off: it has {size} bytes"
            header: Any = from_json(stream.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = _LENGTH_BYTES + length + max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (ValueError, TypeError, AttributeError, LookupError):
        return "is not a safetensors file: its header cannot be read"
    return None if end == size else f"is {'cut off' if size < end else 'too long'}: it has {size} bytes, and its header says {end}"
