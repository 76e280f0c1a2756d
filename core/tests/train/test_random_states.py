"""Each process of a run gets its own random states back; a run in one process those of the process that had the loop."""

import random

import pytest

NUM_GPUS = 0

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


def draw():
    return random.random(), float(numpy.random.random()), float(torch.rand(()))


def seed(number):
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def test_each_process_goes_on_where_it_was(tmp_path):
    from vime.train.random_states import load_process, rank_name, save_process

    expected = {}
    for number in (0, 1):
        seed(number)
        draw()
        save_process(tmp_path, rank_name(number), {"dedup": {"seen": number}})
        expected[number] = draw()
    assert expected[0] != expected[1]
    for number in (1, 0):
        seed(9)
        assert load_process(tmp_path, rank_name(number)) == {"dedup": {"seen": number}}
        assert draw() == expected[number]


def test_a_process_that_was_not_there_keeps_its_own(tmp_path):
    from vime.train.random_states import load_process, rank_name

    seed(3)
    expected = draw()
    seed(3)
    assert load_process(tmp_path, rank_name(2)) is None
    assert draw() == expected


def test_a_trainer_goes_on_with_those_of_the_loop_where_they_are_apart(make_config, make_trainer, tmp_path):
    from vime.train.random_states import DRIVER, save_process

    trainer = make_trainer(make_config())
    seed(1)
    trainer.save(tmp_path)
    of_the_trainer = draw()
    trainer.load(tmp_path)
    assert draw() == of_the_trainer
    seed(2)
    save_process(tmp_path, DRIVER)
    of_the_loop = draw()
    trainer.load(tmp_path)
    assert draw() == of_the_loop != of_the_trainer


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
