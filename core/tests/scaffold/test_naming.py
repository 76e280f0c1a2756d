"""Which names a new plugin may have, what follows from them, and how far its dependency on vime reaches."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from vime.errors import ConfigError
from vime.plugins.discovery import Catalog, PluginEntry
from vime.scaffold.kinds import KINDS, find_kind
from vime.scaffold.naming import Names, check_name, derive_names, version_bounds

NUM_GPUS = 0

INSTALLED = Catalog((PluginEntry("word_count", "pkg:WordCount", "some-plugins", "2.0", "/site"),), "0.1.0")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("my reward", "'my reward' is no name for a plugin: lower-case letters and digits", "for example: my-reward"),
        ("MyReward", "'MyReward' is no name for a plugin", "for example: myreward"),
        ("my_reward", "'my_reward' is no name for a plugin", "for example: my-reward"),
        ("3d", "'3d' is no name for a plugin", "for example: d"),
        ("", "'' is no name for a plugin", "for example: my-reward"),
        ("-", "'-' is no name for a plugin", "for example: my-reward"),
        ("a--b", "'a--b' is no name for a plugin", "for example: a-b"),
        ("../up", "'../up' is no name for a plugin", "for example: up"),
        ("réward", "'réward' is no name for a plugin", "for example: r-ward"),
        ("tail\n", "'tail\\n' is no name for a plugin", "for example: tail"),
        ("x" * 41, "at most 40 characters, and this one has 41", "for example: " + "x" * 40),
        ("vime", "'vime' is a word of vime", "for example: my-vime"),
        ("class", "'class' is a keyword of Python", "for example: my-class"),
        ("math", "there is a plugin 'math' already, in vime-rm-math", "my-math"),
        ("format", "there is a plugin 'format' already, in vime-rm-qa", "my-format"),
        ("remote-rm", "'remote-rm' is upstream's name for another reward", "my-remote-rm"),
        ("boxed-sum", "a plugin cannot be named 'boxed-sum'", "for example: sum"),
        ("custom-rm", "'custom-rm' is the name of the hook custom_rm", "my-custom-rm"),
        ("generate-rollout", "'generate-rollout' is the name of the hook generate_rollout", "my-generate-rollout"),
        ("word-count", "there is a plugin 'word-count' already, in some-plugins 2.0 (/site)", "my-word-count"),
        ("vime-rm-math", "vime-rm-math is a distribution of vime's own", "my-rm-math"),
    ],
)
def test_a_name_that_cannot_be_taken_is_refused(name: str, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_name(name, INSTALLED)
    assert message in refused.value.message
    assert hint in str(refused.value.hint)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("name", ["a", "json", "word-counts", "gsm8k", "vime-rm-words", "x" * 40])
def test_other_names_may_be_taken(name: str) -> None:
    check_name(name, INSTALLED)


def test_a_distribution_or_a_package_of_this_name_is_in_the_way(tmp_path, monkeypatch) -> None:
    info = tmp_path / "vime_taken-3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vime-taken\nVersion: 3.0\n")
    (tmp_path / "vime_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"vime-taken 3\.0 is installed already"):
        check_name("taken", INSTALLED)
    with pytest.raises(ConfigError, match="there is a package vime_module already"):
        check_name("module", INSTALLED)


@pytest.mark.parametrize(
    ("name", "kind", "names"),
    [
        ("word-count", "reward", Names("word-count", "vime-word-count", "vime_word_count", "WordCountReward")),
        ("length-reward", "reward", Names("length-reward", "vime-length-reward", "vime_length_reward", "LengthReward")),
        ("vime-rm-words", "reward", Names("vime-rm-words", "vime-rm-words", "vime_rm_words", "RmWordsReward")),
        ("vime-3d", "buffer-filter", Names("vime-3d", "vime-3d", "vime_3d", "Vime3dBufferFilter")),
    ],
)
def test_all_names_follow_from_one(name: str, kind: str, names: Names) -> None:
    assert derive_names(name, KINDS[kind]) == names


@pytest.mark.parametrize(
    ("version", "bounds"),
    [("0.1.0", ">=0.1,<0.2"), ("0.3.7", ">=0.3,<0.4"), ("1.4.2", ">=1.4,<2"), ("0.2.0.dev3", ">=0.2.0.dev3,<0.3"), ("0", ">=0.0,<0.1")],
)
def test_the_bounds_hold_the_running_version_and_end(version: str, bounds: str) -> None:
    assert version_bounds(version) == bounds
    assert Requirement(f"vime{bounds}").specifier.contains(version, prereleases=True)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("rewards", "did you mean --kind reward?"),
        ("buffer_filter", "did you mean --kind buffer-filter?"),
        ("custom_rm", "did you mean --kind reward?"),
        ("banana", "--kind takes one of: reward, filter, buffer-filter, sample-filter, rollout, generate, post-process"),
    ],
)
def test_an_unknown_kind_is_answered_with_the_nearest(kind: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_kind(kind)
    assert refused.value.hint == hint


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
