"""Contract tests of a plugin as pytest classes: a subclass of a few lines, in `tests/test_contract.py` of the plugin.

    from vime.testing import RewardCase
    from vime.testing.contracts import RewardContract

    class TestLength(RewardContract):
        plugin = "length"
        cases = [RewardCase(prompt="Say hi.", response="hi", label=None, reward=1.0)]

Each check is a test of its own, `test_contract[reward-finite]`. A function that a path flag names is `path = "pkg.mod:fn"`
in place of `plugin`. Install pytest with `pip install "vime[testing]"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import pytest

from vime.errors import ConfigError, VimeError
from vime.plugins.discovery import discover, nearest
from vime.testing.checks import ALL_CHECKS
from vime.testing.checks.base import Check, RewardCase
from vime.testing.report import CheckResult
from vime.testing.runner import TIMEOUT, Session
from vime.testing.subject import find_subject

__all__ = [
    "AllSamplesContract",
    "BufferFilterContract",
    "DataSourceContract",
    "FilterContract",
    "GenerateContract",
    "PluginContract",
    "PostProcessContract",
    "RewardContract",
    "RolloutContract",
    "SampleFilterContract",
    "SampleHookContract",
    "ShapeRewardContract",
]


class _Declared(type):
    """The type of the contract classes: what a subclass may not do, it may not do later or by a mixin or a mark either."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, namespace, **options)
        if cls.__module__ == __name__:
            return
        type.__setattr__(cls, "__test__", True)
        problem = _declaration_problem(cast("type[PluginContract]", cls))
        if problem is not None:
            pytest.fail(f"{name}: {problem}", pytrace=False)

    def __setattr__(cls, name: str, value: Any) -> None:
        problem = _attribute_problem(cast("type[PluginContract]", cls), name, value)
        if name == "__test__" and not value:
            problem = "it hides its checks; leave the class out, or name what cannot pass in expected_failures"
        if problem is not None:
            pytest.fail(f"{cls.__name__}: {problem}", pytrace=False)
        super().__setattr__(name, value)


class PluginContract(metaclass=_Declared):
    """All checks of a plugin, for every hook that it implements. The other classes are for one hook each.

    A subclass sets attributes, and nothing else. Overriding anything is a failure, so that a green test always means the
    same; a check that a plugin cannot pass is named in `expected_failures`.
    """

    plugin: ClassVar[str | None] = None
    """The name of an installed plugin, as --plugin takes it."""
    path: ClassVar[str | None] = None
    """In place of `plugin`: a function as its path flag takes it, `pkg.mod:fn` or `./file.py:fn`."""
    target: ClassVar[Any] = None
    """In place of `plugin`: a plugin module or class, or a function."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """The plugin's settings."""
    args: ClassVar[Mapping[str, Any]] = {}
    """Configuration by field name, such as {"reward_key": "score"}."""
    cases: ClassVar[Sequence[RewardCase]] = ()
    """Known answers of a reward."""
    deterministic: ClassVar[bool] = True
    """False declares that the same input may give another answer."""
    expected_failures: ClassVar[Mapping[str, str]] = {}
    """A reason by check id. A check that passes all the same is a failure."""
    timeout: ClassVar[float] = TIMEOUT
    """Seconds for each check."""
    hook: ClassVar[str | None] = None
    """The hook that is checked; None for all. Set by the classes below; a subclass of this one may set it."""

    __test__ = False

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Make a test of each check."""
        if metafunc.function.__name__ == "test_contract":
            metafunc.parametrize("check_id", _check_ids(cls))

    def test_declaration(self) -> None:
        """The class names one target, which exists and implements the hook."""
        session = _session(type(self))
        if isinstance(session, str):
            pytest.fail(f"{type(self).__name__}: {session}", pytrace=False)

    def test_contract(self, check_id: str) -> None:
        """One check of the kit."""
        session = _session(type(self))
        if isinstance(session, str):
            if check_id == _check_ids(type(self))[0]:
                pytest.fail(f"{type(self).__name__}: {session}", pytrace=False)
            pytest.skip("not run: see test_declaration")
        (found,) = [each for each in ALL_CHECKS if each.id == check_id]
        if found not in session.checks:
            pytest.skip(f"{session.subject.target} is a {session.subject.kind}, which this check is not for")
        _report(found, session.run(found))


class RewardContract(PluginContract):
    """The checks of a reward, hook custom_rm."""

    __test__ = False
    hook = "custom_rm"


class ShapeRewardContract(PluginContract):
    """The checks of an addition to the reward, hook shape_reward."""

    __test__ = False
    hook = "shape_reward"


class FilterContract(PluginContract):
    """The checks of a filter of groups, hook dynamic_sampling_filter."""

    __test__ = False
    hook = "dynamic_sampling_filter"


class BufferFilterContract(PluginContract):
    """The checks of a choice of groups from the buffer, hook buffer_filter."""

    __test__ = False
    hook = "buffer_filter"


class SampleFilterContract(PluginContract):
    """The checks of a filter of samples, hook rollout_sample_filter."""

    __test__ = False
    hook = "rollout_sample_filter"


class RolloutContract(PluginContract):
    """The checks of a rollout, hook generate_rollout."""

    __test__ = False
    hook = "generate_rollout"


class GenerateContract(PluginContract):
    """The checks of a generate function, hook custom_generate."""

    __test__ = False
    hook = "custom_generate"


class PostProcessContract(PluginContract):
    """The checks of the post-processing of rewards, hook post_process_rewards."""

    __test__ = False
    hook = "post_process_rewards"


class SampleHookContract(PluginContract):
    """The checks of what runs between generation and reward, hook rollout_sample_hook."""

    __test__ = False
    hook = "rollout_sample_hook"


class AllSamplesContract(PluginContract):
    """The checks of what sees all samples of a rollout, hook process_all_samples."""

    __test__ = False
    hook = "process_all_samples"


class DataSourceContract(PluginContract):
    """The checks of a source of prompts, hook make_data_source."""

    __test__ = False
    hook = "make_data_source"


_ATTRIBUTES = ("plugin", "path", "target", "settings", "args", "cases", "deterministic", "expected_failures", "timeout")
_FIXED = ("hook", "test_declaration", "test_contract", "pytest_generate_tests", "__init_subclass__")
_PYTEST_OWN = ("pytestmark",)


def _declaration_problem(cls: type[PluginContract]) -> str | None:
    """What is wrong with the body of a subclass, as far as it can be told without loading anything."""
    for holder in cls.__mro__:
        if holder.__module__ == __name__ or holder is object:
            continue
        for name, value in vars(holder).items():
            problem = _attribute_problem(cls, name, value)
            if problem is not None:
                return problem
    ids = [each.id for each in ALL_CHECKS if cls.hook is None or each.hook in (None, cls.hook)]
    for check_id in cls.expected_failures:
        if check_id not in ids:
            near = nearest(check_id, ids)
            return f"expected_failures names {check_id!r}, and there is no such check" + (f"; did you mean {near!r}?" if near else "")
    return None


def _attribute_problem(cls: type[PluginContract], name: str, value: Any) -> str | None:
    """What is wrong with one attribute of a subclass. Further tests and fixtures of the author are welcome."""
    if name == "hook" and cls.__mro__[1] is PluginContract:
        return None
    if name in _FIXED:
        return f"it overrides {name}, which is the kit's own; a check that cannot pass goes into expected_failures, with its reason"
    as_id = name.removeprefix("test_").removeprefix("check_").replace("_", "-")
    if as_id in [each.id for each in ALL_CHECKS]:
        return f"it overrides the check {as_id}; a check that cannot pass goes into expected_failures, with its reason"
    if name in _PYTEST_OWN:
        marks = cast("list[Any]", value if isinstance(value, list) else [value])
        hidden = next((mark.name for mark in marks if mark.name in ("skip", "xfail")), None)
        return f"a mark {hidden!r} hides its checks; one that cannot pass goes into expected_failures, with its reason" if hidden else None
    if name in _ATTRIBUTES or name.startswith("_"):
        return None
    near = nearest(name, _ATTRIBUTES)
    if near is not None or not (callable(value) or isinstance(value, staticmethod | classmethod | property)):
        listing = f"did you mean {near!r}?" if near else "there are " + ", ".join(_ATTRIBUTES)
        return f"it sets {name!r}, which means nothing here; {listing}"
    return None


def _session(cls: type[PluginContract]) -> Session | str:
    """The checks of a class, made ready once, or why they cannot run."""
    made: Session | str | None = vars(cls).get("_made")
    if made is None:
        try:
            made = _make_session(cls)
        except VimeError as error:
            made = error.message + (f"\n  hint: {error.hint}" if error.hint else "")
        setattr(cls, "_made", made)  # noqa: B010 - it is of this class alone, and not of those that derive from it
    return made


def _make_session(cls: type[PluginContract]) -> Session:
    given = [value for value in (cls.plugin, cls.path, cls.target) if value is not None]
    if len(given) != 1:
        raise ConfigError(
            f"it sets {'more than one' if given else 'none'} of plugin, path and target",
            hint='one of plugin = "NAME", path = "pkg.mod:fn" and target = TheClass says what is checked',
        )
    catalog = discover()
    if cls.plugin is not None and not catalog.named(cls.plugin):
        raise catalog.unknown(cls.plugin)
    subject = find_subject(
        given[0],
        hook=cls.hook if cls.plugin is None else None,
        settings=cls.settings,
        args=cls.args,
        catalog=catalog,
        timeout=cls.timeout,
    )
    return Session(
        subject,
        hooks=None if cls.hook is None else (cls.hook,),
        cases=tuple(cls.cases),
        deterministic=cls.deterministic,
        expected_failures=cls.expected_failures,
        timeout=cls.timeout,
    )


def _check_ids(cls: type[PluginContract]) -> list[str]:
    """The checks that are tests of this class: those of its hook and of the package, or what a loaded plugin turns out to need."""
    if cls.hook is None:
        session = _session(cls)
        if isinstance(session, Session):
            return [each.id for each in session.checks]
    hooks = (None,) if cls.hook is None else (None, cls.hook)
    kinds = {"package"} if cls.plugin is not None else {"path"} if cls.path is not None else {"object", "function"}
    return [each.id for each in ALL_CHECKS if each.hook in hooks and kinds & each.kinds]


def _report(each: Check, result: CheckResult) -> None:
    """Give a result to pytest."""
    if result.status == "skip":
        pytest.skip(result.message)
    if result.status == "xfail":
        pytest.xfail(result.message)
    if result.status == "fail":
        lines = [f"{each.id}: {each.doc}", f"  {result.message}"]
        lines += [f"  hint: {result.hint}"] if result.hint else []
        lines += ["  it printed:", *(f"    {line}" for line in result.output.splitlines())] if result.output else []
        pytest.fail("\n".join(lines), pytrace=False)
