"""From the one name that the author gives to all the others, and which names cannot be taken."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import keyword
import re
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from vime.config.upstream import REWARD_ALIASES, REWARD_DISTRIBUTIONS
from vime.errors import ConfigError
from vime.plugins.discovery import FIRST_PARTY, Catalog
from vime.plugins.hookspecs import HOOKS
from vime.scaffold.kinds import Kind

PREFIX = "vime-"
LONGEST = 40
"""Characters of a name: beyond it, the code that is written would no longer fit its lines."""
RESERVED = ("vime", "plugin")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RULE = "lower-case letters and digits, with single hyphens between words, a letter first"


@dataclass(frozen=True)
class Names:
    """The names of one package. For `word-count`: distribution `vime-word-count`, package `vime_word_count`."""

    plugin: str
    """The name of the entry point, which `--plugin` takes, and of the folder."""
    distribution: str
    package: str
    class_name: str


def derive_names(plugin: str, kind: Kind) -> Names:
    """The names that follow from a valid plugin name. A name with the prefix `vime-` is the distribution's name as well."""
    distribution = plugin if plugin.startswith(PREFIX) else PREFIX + plugin
    words = "".join(word.capitalize() for word in plugin.removeprefix(PREFIX).split("-"))
    class_name = words if words.endswith(kind.suffix) else words + kind.suffix
    if not class_name[0].isalpha():
        class_name = f"Vime{class_name}"
    return Names(plugin, distribution, distribution.replace("-", "_"), class_name)


def check_name(name: str, catalog: Catalog) -> None:
    """Refuse a name that is malformed, or taken, with ConfigError and a name that would do."""
    _check_form(name)
    _check_reserved(name)
    _check_installed(name, catalog)


def _check_form(name: str) -> None:
    if _NAME.fullmatch(name) and len(name) <= LONGEST:
        return
    proposal = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-0123456789")[:LONGEST].rstrip("-")
    if len(name) > LONGEST:
        problem = f"a plugin's name has at most {LONGEST} characters, and this one has {len(name)}"
    else:
        problem = f"{name!r} is no name for a plugin: {_RULE}"
    usable = _NAME.fullmatch(proposal) is not None and proposal not in RESERVED and not keyword.iskeyword(proposal)
    raise ConfigError(problem, hint=f"for example: {proposal if usable else 'my-reward'}")


def _check_reserved(name: str) -> None:
    if name in RESERVED or keyword.iskeyword(name):
        what = "a word of vime" if name in RESERVED else "a keyword of Python"
        raise ConfigError(f"{name!r} is {what}, and no name for a plugin", hint=f"for example: my-{name}")
    if name.startswith("boxed-"):
        raise ConfigError(
            f"a plugin cannot be named {name!r}: the rm_type boxed_X hands the last \\boxed{{}} to the reward X",
            hint=f"for example: {name.removeprefix('boxed-')}",
        )
    hook = name.replace("-", "_")
    if hook in HOOKS:
        raise ConfigError(f"{name!r} is the name of the hook {hook}", hint=f"name the plugin after what it does, for example: my-{name}")
    owners: dict[str, str] = {canonicalize_name(known): owner for known, owner in {**REWARD_DISTRIBUTIONS, **FIRST_PARTY}.items()}
    if name in owners:
        raise ConfigError(f"there is a plugin {name!r} already, in {owners[name]}", hint=f"choose another name, for example: my-{name}")
    if name in {canonicalize_name(alias) for alias in REWARD_ALIASES}:
        raise ConfigError(f"{name!r} is upstream's name for another reward", hint=f"choose another name, for example: my-{name}")


def _check_installed(name: str, catalog: Catalog) -> None:
    hint = f"choose another name, for example: my-{name.removeprefix(PREFIX)}"
    for entry in catalog.named(name):
        raise ConfigError(f"there is a plugin {name!r} already, in {entry.distribution} {entry.version} ({entry.location})", hint=hint)
    distribution = name if name.startswith(PREFIX) else PREFIX + name
    if distribution in FIRST_PARTY.values() or distribution in {canonicalize_name(owner) for owner in REWARD_DISTRIBUTIONS.values()}:
        raise ConfigError(f"{distribution} is a distribution of vime's own", hint=hint)
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        pass
    else:
        raise ConfigError(f"{distribution} {installed} is installed already", hint=hint)
    package = distribution.replace("-", "_")
    if importlib.util.find_spec(package) is not None:
        raise ConfigError(f"there is a package {package} already", hint=hint)


def version_bounds(version: str) -> str:
    """The versions that work with a plugin written against this one: `0.1.3` -> `>=0.1,<0.2`, `1.4.0` -> `>=1.4,<2`."""
    running = Version(version)
    lower = running.public if running.is_prerelease else f"{running.major}.{running.minor}"
    upper = f"{running.major + 1}" if running.major else f"0.{running.minor + 1}"
    return f">={lower},<{upper}"
