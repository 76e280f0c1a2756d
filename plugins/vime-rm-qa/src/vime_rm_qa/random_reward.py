"""The entry point `random`: a control without any signal, 1.0 by chance."""

from __future__ import annotations

import hashlib

from pydantic import Field

from vime.api import Sample, hookimpl
from vime.api import Settings as BaseSettings


class Random:
    """Rewards by chance: what a run learns from it comes from elsewhere. The same sample gets the same reward, also after a resume."""

    class Settings(BaseSettings):
        probability: float = Field(default=0.5, ge=0, le=1)
        """How often the reward is 1.0."""
        seed: int = 0
        """Another seed gives other rewards."""

    def __init__(self, settings: Random.Settings) -> None:
        self.settings = settings

    @hookimpl
    def custom_rm(self, sample: Sample) -> float:
        """1.0 with the probability of the settings, else 0.0: drawn from the seed, the sample's index and its response."""
        what = f"{self.settings.seed}/{sample.index}/{sample.response}".encode("utf-8", "surrogatepass")
        drawn = int.from_bytes(hashlib.blake2b(what, digest_size=7).digest()) / 2**56
        return 1.0 if drawn < self.settings.probability else 0.0
