"""What a run sees of an error in an actor: the error itself, where it came from, and who is dead."""

import traceback

import pytest

from vime.errors import ConfigError, ContractError, EngineDeadError, TrainerError

NUM_GPUS = 0

pytestmark = pytest.mark.ray

ray_exceptions = pytest.importorskip("ray.exceptions")


def raised(error: Exception) -> Exception:
    """As `ray.get` raises what an actor's method has raised."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001
        text = traceback.format_exc()
        return ray_exceptions.RayTaskError("train()", text, caught).as_instanceof_cause()


def test_an_error_of_vime_arrives_as_it_was_raised():
    from vime.runtime.ray.calls import RemoteTraceback, translated

    for error in (ConfigError("no such file", hint="name one"), ContractError("plugin x returned 3")):
        found = translated(raised(error), EngineDeadError)
        assert type(found) is type(error) and str(found) == str(error)
        assert not hasattr(found, "__notes__")
        assert isinstance(found.__cause__, RemoteTraceback) and "in raised" in str(found.__cause__)


def test_another_error_tells_its_line_and_keeps_its_notes():
    from vime.runtime.ray.calls import translated

    error = ValueError("the advantages went wrong")
    error.add_note("in the training on rollout 3")
    found = translated(raised(error), EngineDeadError)
    assert type(found) is ValueError and str(found) == "the advantages went wrong"
    first, second = found.__notes__
    assert first == "in the training on rollout 3"
    assert second.startswith("raised at ray/test_calls.py:") and second.endswith(" in raised")


def test_an_error_that_cannot_travel_is_told_in_words():
    from vime.runtime.ray.calls import translated

    class Stuck(Exception):
        def __reduce__(self):
            raise TypeError("no")

    found = translated(raised(Stuck("it is stuck")), EngineDeadError)
    assert "it is stuck" in str(found) or "it is stuck" in str(found.__cause__)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits", "has died (killed, out of memory, or crashed)"),
        (
            "The node was running low on memory: usage above the memory usage threshold",
            "was ended by Ray, since the memory of its node ran out",
        ),
        ("Worker exits by request.\n at node 1", "has died: Worker exits by request."),
    ],
)
def test_a_death_has_its_cause(said, told):
    from vime.runtime.ray.calls import translated

    class Died(ray_exceptions.RayActorError):
        def __str__(self):
            return said

    found = translated(Died(), lambda cause: TrainerError(f"rank 1 {cause}"))
    assert isinstance(found, TrainerError) and found.message == f"rank 1 {told}"


def test_a_signal_in_compiled_code_is_what_its_handler_raised():
    from vime.runtime.interrupts import Interrupted
    from vime.runtime.ray.calls import signals_as_raised

    with pytest.raises(Interrupted) as caught, signals_as_raised():
        raise SystemError("wait returned a result with an exception set") from Interrupted(2)
    assert caught.value.exit_code == 130
    with pytest.raises(SystemError), signals_as_raised():
        raise SystemError("another") from ValueError("one")


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
