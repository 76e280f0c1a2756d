"""Which plugins are installed, by metadata alone, and what is said about a name that is not."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from vime.errors import PluginError
from vime.plugins.discovery import discover, missing_module, unreadable_entry_points

NUM_GPUS = 0

HOOK = "from vime.api import hookimpl\n\n@hookimpl\ndef custom_rm(sample):\n    return 1.0\n"


def test_discovery_imports_nothing(install):
    install(
        "vime-boom", plugins={"boom": "zoo_boom.inner"}, modules={"zoo_boom/__init__.py": "raise SystemExit(3)", "zoo_boom/inner.py": ""}
    )
    catalog = discover()
    (entry,) = catalog.named("boom")
    assert catalog.status(entry) == ("ok", None)
    assert "zoo_boom" not in sys.modules


@pytest.mark.parametrize("asked", ["Fancy-Reward", "fancy_reward", "FANCY.Reward", "fancy-reward"])
def test_names_are_compared_as_pep_503_does(install, asked):
    install("vime-fancy", plugins={"fancy-reward": "zoo_fancy"}, modules={"zoo_fancy.py": HOOK})
    assert discover().find(asked).distribution == "vime-fancy"


def test_a_module_that_is_not_there_is_a_fault_of_its_own(install):
    install("vime-gone", plugins={"gone": "zoo_gone.deep.er"}, modules={"zoo_gone/__init__.py": ""})
    status, detail = discover().status(discover().named("gone")[0])
    assert status == "broken" and detail is not None and "'zoo_gone.deep'" in detail
    with pytest.raises(PluginError, match=r"plugin 'gone' \(vime-gone 1\.0\): .*no module 'zoo_gone\.deep'"):
        discover().find("gone")


@pytest.mark.parametrize("line", ["odd = not a target!", "no equals sign", "= zoo_odd", "odd ="])
def test_a_malformed_entry_point_is_a_row_and_not_an_error(install, line):
    install("vime-odd", entry_points=f"[vime.plugins]\n{line}\n")
    install("vime-fine", plugins={"fine": "zoo_fine"}, modules={"zoo_fine.py": HOOK})
    catalog = discover()
    (odd,) = [entry for entry in catalog.entries if entry.distribution == "vime-odd"]
    status, detail = catalog.status(odd)
    assert status == "broken" and "is not of the form name = module" in (detail or "")
    assert catalog.find("fine").name == "fine"


def test_a_distribution_without_a_readable_metadata_file_is_a_row(install, site):
    install("vime-bad", plugins={"bad": "zoo_bad"}, modules={"zoo_bad.py": HOOK})
    (site / "vime_bad-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: vime-bad\nVersion: 1.0\nRequires-Dist: vime >>> 3\n"
    )
    catalog = discover()
    status, detail = catalog.status(catalog.named("bad")[0])
    assert (status, detail) == ("broken", "its metadata has the requirement 'vime >>> 3', which is none")


def test_entry_points_that_are_not_utf_8_are_read_all_the_same(install, site):
    install("vime-latin", plugins={"latin": "zoo_latin"}, modules={"zoo_latin.py": HOOK})
    (site / "vime_latin-1.0.dist-info" / "entry_points.txt").write_bytes(b"[vime.plugins]\n# caf\xe9\nlatin = zoo_latin\n")
    assert discover().find("latin").target == "zoo_latin"
    error = unreadable_entry_points()
    assert error is not None and "distribution vime-latin 1.0: Python cannot read its entry_points.txt" in error.message


@pytest.mark.parametrize("library", ["importlib.metadata", "importlib_metadata"])
def test_the_version_is_in_the_folders_name_too(install, site, monkeypatch, library):
    """Once a library has imported the second one, that finds what the first one is asked for."""
    finders = [pytest.importorskip(library).MetadataPathFinder().find_distributions]
    monkeypatch.setattr(importlib.metadata.Distribution, "_discover_resolvers", staticmethod(lambda: finders))
    install("vime-bare", version="2.5", plugins={"bare": "zoo_bare"}, modules={"zoo_bare.py": HOOK})
    (site / "vime_bare-2.5.dist-info" / "METADATA").unlink()
    (entry,) = discover().named("bare")
    assert (entry.label, entry.fault) == ("plugin 'bare' (vime_bare 2.5)", "its metadata has no Name and no Version")


@pytest.mark.parametrize("name", ["a b", "a/b", "a,b", "a:b", ".a", "a-", "é"])
def test_names_that_flags_and_metrics_could_not_hold(install, name):
    install("vime-odd", entry_points=f"[vime.plugins]\n{name} = zoo_odd\n")
    (entry,) = [entry for entry in discover().entries if entry.distribution == "vime-odd"]
    assert entry.name == name and "has other characters" in (entry.fault or "")


def test_other_groups_and_comments_are_not_plugins(install):
    install(
        "vime-mixed", entry_points="[console_scripts]\nmixed-tool = x:y\n\n[vime.plugins]\n# a comment\nmixed = zoo_mixed\n[other]\nz = y\n"
    )
    assert [entry.name for entry in discover().entries if entry.distribution == "vime-mixed"] == ["mixed"]


def test_two_distributions_that_claim_one_name_are_a_conflict(install):
    install("vime-one", plugins={"twin": "zoo_one"}, modules={"zoo_one.py": HOOK})
    install("vime-two", version="2.0", plugins={"Twin": "zoo_two"}, modules={"zoo_two.py": HOOK})
    catalog = discover()
    assert [catalog.status(entry)[0] for entry in catalog.named("twin")] == ["conflict", "conflict"]
    with pytest.raises(PluginError, match=r"vime-one 1\.0 \(target zoo_one\) and vime-two 2\.0 \(target zoo_two\)") as caught:
        catalog.find("twin")
    assert caught.value.hint == "uninstall one of them: pip uninstall vime-two"


def test_a_distribution_found_twice_counts_where_python_imports_it_from(install, tmp_path, monkeypatch, site):
    install("vime-again", version="1.0", plugins={"again": "zoo_again"}, modules={"zoo_again.py": HOOK})
    other = tmp_path / "other"
    other.mkdir()
    (site / "vime_again-1.0.dist-info").rename(other / "vime_again-1.0.dist-info")
    install("vime-again", version="2.0", plugins={"again": "zoo_again"})
    monkeypatch.syspath_prepend(str(other))
    assert [entry.version for entry in discover().named("again")] == ["1.0"]


@pytest.mark.parametrize(
    ("requires", "status"),
    [
        (("vime>=99",), "incompatible"),
        (("vime<0.0.1",), "incompatible"),
        (("vime[gpu]>=99",), "incompatible"),
        (("vime>=0.0.1", "requests"), "ok"),
        (("vime",), "ok"),
        (("requests",), "ok"),
        (("vime>=99; extra == 'future'",), "ok"),
        (("vime>=99; python_version < '3'",), "ok"),
    ],
)
def test_the_version_range_that_a_plugin_asks_of_vime(install, requires, status):
    install("vime-range", plugins={"range": "zoo_range"}, modules={"zoo_range.py": HOOK}, requires=requires)
    catalog = discover()
    (entry,) = catalog.named("range")
    assert catalog.status(entry)[0] == status
    if status == "incompatible":
        with pytest.raises(PluginError, match=r"plugin 'range' \(vime-range 1\.0\): needs vime .*, and this is vime ") as caught:
            catalog.find("range")
        assert caught.value.hint == "pip install --upgrade vime-range vime"


def test_an_unknown_name_lists_what_is_installed(install, site):
    install("vime-fancy", plugins={"fancy": "zoo_fancy"}, modules={"zoo_fancy.py": HOOK})
    catalog = discover([str(site)])
    with pytest.raises(PluginError, match=r"there is no plugin 'fncy'; installed: fancy") as caught:
        catalog.find("fncy")
    assert caught.value.hint == "did you mean --plugin fancy?"


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("math", "pip install vime-rm-math"),
        ("MATH", "pip install vime-rm-math"),
        ("nonzero_std", "pip install vime-filters-basic"),
        ("sft", "pip install vime-rollout-sft"),
        ("mth", "did you mean 'math'? pip install vime-rm-math"),
        ("rm_math", "pip install vime-rm-math, then --plugin math or dapo or deepscaler"),
        ("vime-rollout-sft", "pip install vime-rollout-sft, then --plugin sft"),
        ("vime_fancy", "vime-fancy is a distribution; --plugin takes the names of its plugins: fancy"),
        ("f1", "pip install vime-rm-qa"),
        ("remote", "pip install vime-rm-remote"),
        ("remote_rm", "pip install vime-rm-remote, then --plugin remote"),
        ("zzzzzz", "see `vime plugin list` for what is installed, and pip install the distribution that brings it"),
    ],
)
def test_the_hint_for_an_unknown_name(install, site, asked, hint):
    install("vime-fancy", plugins={"fancy": "zoo_fancy"}, modules={"zoo_fancy.py": HOOK})
    with pytest.raises(PluginError) as caught:
        discover([str(site)]).find(asked)
    assert caught.value.hint == hint


def test_a_plugin_that_an_older_distribution_does_not_have(install, site):
    install("vime-rm-math", version="0.0.1", plugins={"math": "zoo_math"}, modules={"zoo_math.py": HOOK})
    with pytest.raises(PluginError) as caught:
        discover([str(site)]).find("dapo")
    assert caught.value.hint == "vime-rm-math 0.0.1 does not have it: pip install --upgrade vime-rm-math"


def test_nothing_installed(tmp_path):
    with pytest.raises(PluginError, match="no plugin is installed"):
        discover([str(tmp_path)]).find("math")


def test_modules_are_found_without_importing_their_parents(install, site):
    install("vime-x", modules={"zoo_pkg/__init__.py": "raise RuntimeError", "zoo_pkg/sub/__init__.py": "", "zoo_pkg/sub/leaf.py": ""})
    assert missing_module("zoo_pkg.sub.leaf") is None
    assert missing_module("zoo_pkg.sub.leaf.deeper") == "zoo_pkg.sub.leaf.deeper"
    assert missing_module("zoo_pkg.other.leaf") == "zoo_pkg.other"
    assert missing_module("zoo_nothing.other") == "zoo_nothing"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
