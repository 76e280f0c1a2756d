"""The base class of a plugin's settings.

A plugin class declares what can be configured in an inner class, and vime builds the plugin with the validated values:

    from vime.api import Sample, Settings, hookimpl

    class Length:
        class Settings(Settings):
            limit: int = 512
            \"\"\"Answers with more tokens than this are removed from training.\"\"\"

        def __init__(self, settings: "Length.Settings") -> None:
            self.settings = settings

        @hookimpl
        def rollout_sample_filter(self, samples: list[list[Sample]]) -> None:
            for group in samples:
                for sample in group:
                    sample.remove_sample |= sample.response_length > self.settings.limit

Users set the values with `--set length.limit=256` or in the configuration file, `plugin_settings: {length: {limit: 256}}`.
The docstring under a field is what `vime plugin show length` prints. The constructor takes one argument named `settings`;
a class without a constructor of its own finds the values in `self.settings` from its first hook call on. A class without
`Settings` is built without arguments, and settings given to it are refused.
"""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_jsonable_python

from vime.redact import revealed


class Settings(BaseModel):
    """Base of a plugin's settings: frozen, unknown keys refused, the docstring under a field is its description."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())


# For the classes that inherit from it. This one has no fields, and looking for their docstrings would read this file in every start.
Settings.model_config["use_attribute_docstrings"] = True


def settings_as_json(settings: BaseModel | None) -> str:
    """The settings as another process needs them to build the plugin again: with what SecretStr and its like hide."""
    return "{}" if settings is None else json.dumps(revealed(settings.model_dump()), default=to_jsonable_python)
