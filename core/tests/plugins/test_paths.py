"""Functions named by path, in the style of slime and upstream vime, called as those call them."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from vime.config.run_config import RunConfig
from vime.errors import PluginError
from vime.plugins.hookspecs import HOOKS
from vime.plugins.manager import PluginManager
from vime.plugins.paths import load_path_function, resolve_path
from vime.sample import Sample

NUM_GPUS = 0

SOURCE = """
import functools

class Holder:
    @staticmethod
    def static(args, sample): return "static"

class Callable:
    def __call__(self, args, sample): return "instance"

instance = Callable()
partial = functools.partial(lambda factor, args, sample: factor, 3)
CONSTANT = 3

def rm(args, sample, **kwargs):
    return (args, sample, kwargs)

async def async_rm(arguments, the_sample):
    return the_sample

def group_rm(a, many):
    return [1.0] * len(many)

def star(*everything, **more):
    return everything, more

def keep(args, samples, **kwargs):
    return len(samples) > 1

def gen_plain(args, sample, sampling_params):
    return (sample, sampling_params)

def gen_eval(args, sample, sampling_params, evaluation=False):
    return evaluation

def gen_engine(args, sample, params, engine, evaluation):
    return engine, evaluation

def rollout(args, rollout_id, data_buffer, evaluation=False):
    return rollout_id, data_buffer, evaluation

def rollout_kwargs(args, rollout_id, data_buffer, **kwargs):
    return kwargs

def hook(args, sample, *, rollout_id=None, evaluation=False):
    return rollout_id, evaluation

def tis(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, **kwargs):
    return pg_loss, train_log_probs, rollout_log_probs, loss_masks, kwargs

def tis_some(args, *, pg_loss, **kwargs):
    return pg_loss, sorted(kwargs)

def tis_positional(a, b, c, d, e):
    return b, c, d, e

def tis_with_lengths(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, **kwargs):
    return total_lengths, response_lengths, kwargs

def tis_of_all_names(args, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths):
    return pg_loss, loss_masks, response_lengths

def tis_in_another_order(args, rollout_log_probs, train_log_probs, pg_loss, clip=2.0, **kwargs):
    return pg_loss, train_log_probs, rollout_log_probs

def tis_of_kwargs(**kwargs):
    return sorted(kwargs)

def tis_of_more(args, pg_loss, train_log_probs, rollout_log_probs, loss_masks, cp_rank): ...

def log(rollout_id, args, samples, rollout_extra_metrics, rollout_time):
    return rollout_id, args, rollout_time

def reducer(total, response, masks, per_token):
    return total, per_token

def too_few(args): ...
def too_many(args, sample, model): ...
def keyword_only(args, sample, *, model): ...
def generator(args, sample): yield 1

class Source:
    def __init__(self, args): self.args = args
    def get_samples(self, n): ...
    def add_samples(self, groups): ...
    def save(self, rollout_id): ...
    def load(self, rollout_id): ...
    def __len__(self): return 4

class HalfSource:
    def __init__(self, args): ...
    def get_samples(self, n): ...
"""


@pytest.fixture
def pkg(install):
    install(
        "x",
        modules={
            "zoo_pkg/__init__.py": "def top(args, sample): return 'top'",
            "zoo_pkg/deep/__init__.py": "",
            "zoo_pkg/deep/fns.py": SOURCE,
            "zoo_pkg/broken.py": "raise SystemExit('not today')",
            "zoo_pkg/of_slime.py": "raise ModuleNotFoundError(\"No module named 'slime'\", name='slime.utils.types')",
            "zoo_pkg/needs.py": "import zoo_missing_dependency",
        },
    )
    return "zoo_pkg.deep.fns"


RM = {"args": "ARGS", "sample": "SAMPLE", "samples": None}
GEN = {"args": 1, "sample": 2, "sampling_params": 3, "evaluation": True, "engine": "ENGINE"}
ROLLOUT = {"args": 1, "rollout_id": 7, "data_source": "DATA", "evaluation": True, "engine": "ENGINE"}
TIS = {"args": 1, "pg_loss": 2, "train_log_probs": 3, "rollout_log_probs": 4, "loss_masks": 5, "total_lengths": 6, "response_lengths": 7}
HOOK = {"args": 1, "sample": 2, "rollout_id": 3, "evaluation": True}
CALLS = [
    ("custom_rm", "rm", RM, ("ARGS", "SAMPLE", {})),
    ("custom_rm", "group_rm", {"args": 1, "samples": [1, 2]}, [1.0, 1.0]),
    ("custom_rm", "group_rm", {"args": 1, "sample": None, "samples": [1, 2]}, [1.0, 1.0]),
    ("custom_rm", "star", RM, (("ARGS", "SAMPLE"), {})),
    ("custom_rm", "Holder.static", RM, "static"),
    ("custom_rm", "instance", RM, "instance"),
    ("custom_rm", "partial", RM, 3),
    ("dynamic_sampling_filter", "keep", {"args": 1, "samples": [1, 2]}, True),
    ("custom_generate", "gen_plain", GEN, (2, 3)),
    ("custom_generate", "gen_eval", GEN, True),
    ("custom_generate", "gen_engine", GEN, ("ENGINE", True)),
    ("generate_rollout", "rollout", ROLLOUT, (7, "DATA", True)),
    ("generate_rollout", "rollout_kwargs", ROLLOUT, {"evaluation": True}),
    ("rollout_sample_hook", "hook", HOOK, (3, True)),
    ("rollout_sample_hook", "rm", HOOK, (1, 2, {"rollout_id": 3, "evaluation": True})),
    ("importance_weights", "tis", TIS, (2, 3, 4, 5, {"total_lengths": 6, "response_lengths": 7})),
    ("importance_weights", "tis_some", TIS, (2, sorted(TIS.keys() - {"args", "pg_loss"}))),
    ("importance_weights", "tis_positional", TIS, (2, 3, 4, 5)),
    ("importance_weights", "tis_with_lengths", TIS, (6, 7, {})),
    ("importance_weights", "tis_of_all_names", TIS, (2, 5, 7)),
    ("importance_weights", "tis_in_another_order", TIS, (2, 3, 4)),
    ("importance_weights", "tis_of_kwargs", TIS, sorted(TIS)),
    (
        "log_rollout_data",
        "log",
        {"rollout_id": 1, "args": 2, "samples": 3, "rollout_extra_metrics": 4, "rollout_time": 5},
        (1, 2, 5),
    ),
    (
        "pg_loss_reducer",
        "reducer",
        {"total_lengths": 1, "response_lengths": 2, "loss_masks": 3, "calculate_per_token_loss": True},
        (1, True),
    ),
]


@pytest.mark.parametrize(("hook", "name", "given", "expected"), CALLS)
def test_a_function_is_called_as_upstream_calls_it(pkg, hook, name, given, expected):
    assert load_path_function(f"{pkg}:{name}", hook).call(**given) == expected


def test_an_async_function(pkg):
    function = load_path_function(f"{pkg}.async_rm", "custom_rm")
    assert function.is_async and asyncio.run(function.acall(**RM)) == "SAMPLE"


@pytest.mark.parametrize("path", ["zoo_pkg.deep.fns.rm", "zoo_pkg.deep.fns:rm", "zoo_pkg.top", "zoo_pkg.deep.fns.Holder.static"])
def test_the_forms_of_a_path(pkg, path):
    function = load_path_function(path, "custom_rm")
    assert function.plugin == f"path:{path}" and function.label == f"path function {path}"
    function.call(**RM)


def test_a_file(tmp_path, monkeypatch, site):
    (tmp_path / "rewards.py").write_text("from zoo_helper import value\n\ndef rm(args, sample): return value\n")
    (tmp_path / "zoo_helper.py").write_text("value = 4.0")
    monkeypatch.chdir(tmp_path)
    function = load_path_function("./rewards.py:rm", "custom_rm")
    assert function.call(**RM) == 4.0
    assert load_path_function(str(tmp_path / "rewards.py") + ":rm", "custom_rm").function is function.function
    assert function.reference is not None and function.reference.path == f"{tmp_path / 'rewards.py'}:rm"
    assert function.reference.load().call(**RM) == 4.0


def test_a_module_of_the_current_directory(tmp_path, monkeypatch, site):
    (tmp_path / "zoo_here.py").write_text("def rm(args, sample): return 1.0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as a console script starts
    assert load_path_function("zoo_here.rm", "custom_rm").call(**RM) == 1.0


def test_the_current_directory_never_hides_what_is_installed(tmp_path, monkeypatch, site):
    (tmp_path / "json.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    resolve_path("json.dumps", "x")
    assert sys.path[0] != str(tmp_path)


def test_a_current_directory_that_was_deleted(tmp_path, monkeypatch, site):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert resolve_path("json.dumps", "--x") is json.dumps
    with pytest.raises(PluginError, match="there is no module 'nosuch_module'"):
        resolve_path("nosuch_module.fn", "--x")
    with pytest.raises(PluginError, match=r"there is no file fns\.py"):
        resolve_path("./fns.py:fn", "--x")


def test_a_plugins_own_function_by_path_takes_what_it_declares(install):
    install("x", modules={"zoo_own.py": "from vime.api import hookimpl\n\n@hookimpl\ndef custom_rm(sample):\n    return sample"})
    assert load_path_function("zoo_own.custom_rm", "custom_rm").call(**RM) == "SAMPLE"


def test_a_data_source_is_a_class(pkg):
    source = load_path_function(f"{pkg}.Source", "make_data_source").call(args="ARGS")
    assert source.args == "ARGS" and len(source) == 4


WRONG = [
    ("custom_rm", "zoo_nothing.rm", "there is no module 'zoo_nothing'", "run from the directory that holds zoo_nothing"),
    (
        "custom_rm",
        "zoo_pkg.depe.fns.rm",
        "there is no module 'zoo_pkg.depe'; zoo_pkg has broken, deep, needs, of_slime",
        "did you mean 'deep'?",
    ),
    ("custom_rm", "zoo_pkg.deep.fsn:rm", "there is no module 'zoo_pkg.deep.fsn'; zoo_pkg.deep has fns", "did you mean 'fns'?"),
    (
        "custom_rm",
        "zoo_pkg.deep.fns.deeper.rm",
        "there is no module 'zoo_pkg.deep.fns.deeper'; zoo_pkg.deep.fns is a module, not a package",
        "write",
    ),
    (
        "custom_rm",
        "zoo_pkg.deep.fns.async_mr",
        "module zoo_pkg.deep.fns has no 'async_mr'; it offers Holder, Callable, ",
        "did you mean 'async_rm'?",
    ),
    ("custom_rm", "zoo_pkg.deep.fns.Holder.stat", "zoo_pkg.deep.fns.Holder has no 'stat'; it offers static", "did you mean 'static'?"),
    ("custom_rm", "zoo_pkg.deep", "zoo_pkg.deep is a module", "name a function in it"),
    ("custom_rm", "zoo_pkg.deep.fns", "zoo_pkg.deep.fns is a module", "zoo_pkg.deep.fns.rm"),
    ("custom_rm", "rewards.py.rm", "rewards.py is a file, whose function stands after a colon", "did you mean ./rewards.py:rm?"),
    ("custom_rm", "./rewards.py.rm", "./rewards.py is a file, whose function stands after a colon", "did you mean ./rewards.py:rm?"),
    ("custom_rm", "slime.rollout.sglang_rollout.rm", "there is no module 'slime'", "write vime.rollout.vllm_rollout.rm in place of"),
    ("generate_rollout", "vime.rollout.sglang_rollout.f", "there is no module 'vime.rollout.sglang_rollout'", "mean 'vllm_rollout'?"),
    ("custom_rm", "zoo_pkg.of_slime.rm", "No module named 'slime'", "write vime.utils.types in place of slime.utils.types"),
    ("custom_rm", "rm", "'rm' is not a path to a function", "write pkg.module.function, pkg.module:function or ./file.py:function"),
    ("custom_rm", "", "'' is not a path to a function", "write"),
    ("custom_rm", "zoo pkg.rm", "'zoo pkg.rm' is not a path to a function", "write"),
    ("custom_rm", "zoo_pkg:", "nothing after the colon", "write"),
    ("custom_rm", ":rm", "nothing before the colon", "write"),
    ("custom_rm", "./rewards.py", "it names a file and no function in it", "./rewards.py:FUNCTION"),
    ("custom_rm", "./rewrds.py:rm", "there is no file rewrds.py; . has rewards.py", "did you mean 'rewards.py'?"),
    ("custom_rm", "./no/rewards.py:rm", "there is no file no/rewards.py; there is no directory no", "write"),
    ("custom_rm", "./rewards.py:rm:z", "there is more than one colon in it", "write"),
    ("custom_rm", "zoo_pkg.deep.fns.Callable.__call__", "it is a method of the class Callable, and there is no object", "name a function"),
    ("custom_rm", "./rewards.py:rn", "rewards.py has no 'rn'; it offers rm", "write pkg"),
    (
        "dynamic_sampling_filter",
        "vime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero",
        "it offers check_reward_nonzero_std, check_reward_nonzero_std_with_fallback",
        "did you mean 'check_reward_nonzero_std'?",
    ),
    ("custom_rm", "zoo_pkg.broken.rm", "importing zoo_pkg.broken raised SystemExit: not today", "--traceback"),
    (
        "custom_rm",
        "zoo_pkg.needs.rm",
        "importing zoo_pkg.needs raised ModuleNotFoundError: No module named 'zoo_missing_dependency'",
        "install",
    ),
    ("custom_rm", "zoo_pkg.deep.fns.CONSTANT", "it is of the type int, which cannot be called", "name a function"),
    ("custom_rm", "zoo_pkg.deep.fns.Holder", "it is a class", "--custom-rm-path calls it with (args, sample)"),
    (
        "custom_rm",
        "zoo_pkg.deep.fns.too_few",
        "it takes 1 positional argument, and gets 2",
        "--custom-rm-path calls it with (args, sample)",
    ),
    (
        "importance_weights",
        "zoo_pkg.deep.fns.tis_of_more",
        "it needs the argument 'cp_rank', which is not passed",
        "calls it with (args, pg_loss, train_log_probs, rollout_log_probs, loss_masks), and total_lengths, response_lengths by keyword",
    ),
    ("custom_rm", "zoo_pkg.deep.fns.too_many", "it needs the argument 'model', which is not passed", "give 'model' a default"),
    ("custom_rm", "zoo_pkg.deep.fns.keyword_only", "it needs the argument 'model', which is not passed", "give 'model' a default"),
    ("custom_generate", "zoo_pkg.deep.fns.rm", "it takes 2 positional arguments, and gets 3", "(args, sample, sampling_params)"),
    ("custom_rm", "zoo_pkg.deep.fns.generator", "custom_rm is a generator", "return the result"),
    (
        "make_data_source",
        "zoo_pkg.deep.fns.HalfSource",
        "class HalfSource has no add_samples, save, load, __len__",
        "a data source has get_samples",
    ),
]


@pytest.mark.parametrize(("hook", "path", "message", "hint"), WRONG)
def test_a_path_that_does_not_work_says_which_part(pkg, tmp_path, monkeypatch, hook, path, message, hint):
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "rewards.py").write_text("def rm(args, sample): ...")
    monkeypatch.chdir(tmp_path / "cwd")
    flag = str(HOOKS[hook].path_flag)
    with pytest.raises(PluginError) as caught:
        PluginManager.load(RunConfig(**{flag: path})) if path else load_path_function(path, hook)
    assert caught.value.message.startswith(f"{HOOKS[hook].flag} {path}: ")
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_file_that_fails_is_tried_again_after_it_was_mended(tmp_path, monkeypatch, site):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text("1 / 0")
    with pytest.raises(PluginError, match=r"importing \./mine\.py raised ZeroDivisionError"):
        load_path_function("./mine.py:rm", "custom_rm")
    file.write_text("def rm(args, sample):\n    return 2.0  # mended\n")
    assert load_path_function("./mine.py:rm", "custom_rm").call(**RM) == 2.0


def test_a_path_function_is_resolved_once_for_each_hook(pkg):
    manager = PluginManager()
    first = manager.path_function(f"{pkg}.rm", "custom_rm")
    assert manager.path_function(f"{pkg}.rm", "custom_rm") is first
    assert manager.path_function(f"{pkg}.rm", "rollout_sample_hook") is not first
    first.call(args=None, sample=Sample())
    assert list(manager.take_timings()) == [f"path:{pkg}.rm/custom_rm_ms"]


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
