"""The rollout store in one process: append, take, staleness, damage."""

import fcntl
import os

import pytest
from sqlalchemy import func, select

from swe_rl.errors import ChecksumError, StoreError
from swe_rl.store.blobs import encode_group
from swe_rl.store.rollouts import RolloutStore
from swe_rl.store.rows import GroupCounts
from swe_rl.store.schema import GROUPS
from swe_rl.store.steps import StepRule


def fill(store, script, *indices, version=0):
    for index in indices:
        assert store.append(script.make_group(index, version=version))


def indices_of(groups):
    return [group.index for group in groups]


def blobs_of(run):
    return sorted((run.run_dir / "rollouts").iterdir())


def test_a_stored_group_is_read_back_bit_for_bit(run, script):
    fill(run.rollouts(), script, 5)
    assert encode_group(run.rollouts().get(5)) == encode_group(script.make_group(5))
    row = run.rollouts().groups()[0]
    assert (row.index, row.group_id, row.task_id, row.split, row.policy_version) == (5, "g00005", "task-2", "train", 0)


def test_what_is_read_together_is_of_one_moment(run, script):
    store, other = run.rollouts(), run.rollouts()
    with store._index.read() as connection:
        query = select(func.count()).select_from(GROUPS)
        before = connection.execute(query).scalar_one()
        other.append(script.make_group(0))
        assert connection.execute(query).scalar_one() == before
    assert store.counts().written == 1
    store.close()
    other.close()


def test_the_first_group_of_an_index_wins_and_the_second_leaves_no_file(run, script):
    store = run.rollouts()
    assert store.append(script.make_group(0, version=1))
    assert not store.append(script.make_group(0, version=2))
    assert store.get(0).policy_version == 1
    assert len(blobs_of(run)) == 1


def test_a_group_id_under_two_indices_is_refused(run, script):
    store = run.rollouts()
    store.append(script.make_group(0, group_id="same"))
    with pytest.raises(StoreError, match="unique"):
        store.append(script.make_group(1, group_id="same"))
    assert store.num_groups() == 1


@pytest.mark.parametrize("group_id", ["../../escape", "a/b", ".hidden", "ключ ü", "x" * 300, "%2F"])
def test_any_group_id_is_stored_inside_the_run(run, script, group_id):
    store = run.rollouts()
    store.append(script.make_group(0, group_id=group_id))
    assert store.get(0).group_id == group_id
    assert len(blobs_of(run)) == 1


def test_gaps_are_named_and_the_next_index_is_above_the_highest(run, script):
    store = run.rollouts()
    assert store.next_index() == 0
    assert store.missing_indices(2) == [0, 1]
    fill(store, script, 4, 0, 2)
    assert store.next_index() == 5
    assert store.missing_indices(6) == [1, 3, 5]
    assert store.num_groups() == 3


def test_take_waits_until_there_are_enough(run, script):
    store = run.rollouts()
    fill(store, script, 0, 1)
    assert store.take(StepRule(3), 0, 0) is None
    fill(store, script, 2)
    assert indices_of(store.take(StepRule(3), 0, 0)) == [0, 1, 2]


def test_take_gives_the_lowest_indices_in_order(run, script):
    store = run.rollouts()
    fill(store, script, 9, 3, 7, 1)
    assert indices_of(store.take(StepRule(2), 0, 0)) == [1, 3]


def test_the_same_version_gets_the_same_groups_again_though_lower_ones_came_since(run, script):
    store = run.rollouts()
    fill(store, script, 1, 2, 3)
    assert indices_of(store.take(StepRule(2), 0, 0)) == [1, 2]
    fill(store, script, 0)
    store.close()
    assert indices_of(run.rollouts().take(StepRule(2), 0, 0)) == [1, 2]


def test_stale_groups_are_dropped_counted_and_never_delivered(run, script):
    store = run.rollouts()
    fill(store, script, 0, version=0)
    fill(store, script, 1, version=1)
    fill(store, script, 2, version=2)
    assert indices_of(store.take(StepRule(2), 2, 1)) == [1, 2]
    assert store.counts() == GroupCounts(written=3, waiting=2, consumed=0, dropped=1)
    assert store.groups()[0].dropped_at == 2
    assert store.num_groups() == 2  # back-pressure lets the producer replace it
    assert store.take(StepRule(3), 0, 5) is None  # not even for a trainer that would bear it


def test_drops_are_kept_though_too_few_groups_are_left(run, script):
    store = run.rollouts()
    fill(store, script, 0, 1, version=0)
    assert store.take(StepRule(1), 3, 0) is None
    assert store.counts().dropped == 2


def test_staleness_at_the_limit_is_delivered(run, script):
    store = run.rollouts()
    fill(store, script, 0, version=3)
    assert indices_of(store.take(StepRule(1), 5, 2)) == [0]


def test_a_take_that_makes_no_sense_is_refused(run):
    with pytest.raises(ValueError, match="step of 0 groups"):
        run.rollouts().take(StepRule(0), 0, 0)
    with pytest.raises(ValueError, match="max_staleness -1"):
        run.rollouts().take(StepRule(1), 0, -1)


def odd(rows):
    """Carried by groups of odd index."""
    return rows[0].index % 2 == 1


def test_with_back_fill_a_step_goes_on_until_it_has_enough_groups_with_a_signal(run, script):
    store, step = run.rollouts(), StepRule(2, 3, odd)
    fill(store, script, 0, 2, 5)
    assert store.take(step, 0, 0) is None and store.num_missing(step, 1) == 1
    fill(store, script, 7)
    assert store.num_missing(step, 1) == 0 and store.num_missing(step, 2) == 2
    assert indices_of(store.take(step, 0, 0)) == [0, 2, 5, 7]
    fill(store, script, 1, 6)  # a lower index came since: the claim stands, and counts first
    assert indices_of(store.take(step, 0, 0)) == [0, 2, 5, 7]
    assert store.num_missing(step, 2) == 1
    store.close()
    assert indices_of(run.rollouts().take(step, 0, 0)) == [0, 2, 5, 7]


def test_a_step_that_finds_no_signal_takes_as_many_groups_as_it_may(run, script):
    store, step = run.rollouts(), StepRule(2, 1, odd)
    fill(store, script, 0, 2)
    assert store.num_missing(step, 1) == 1 and store.take(step, 0, 0) is None
    fill(store, script, 4, 6)
    assert indices_of(store.take(step, 0, 0)) == [0, 2, 4]


def test_a_group_that_grew_stale_is_missing_again_with_back_fill_too(run, script):
    store, step = run.rollouts(), StepRule(2, 2, odd)
    fill(store, script, 1, version=0)
    fill(store, script, 3, 4, version=1)
    assert store.take(step, 1, 0) is None
    assert store.counts().dropped == 1 and store.num_missing(step, 1) == 1


def test_steps_whose_groups_are_consumed_are_no_longer_missing(run, script):
    store, step = run.rollouts(), StepRule(2, 2, odd)
    fill(store, script, 0, 1, 3, 5)
    taken = store.take(step, 0, 0)
    assert store.num_missing(step, 3) == 3
    run.policies().publish(lambda d: script.write_policy(d, 0), 0)
    run.policies().publish(lambda d: script.write_policy(d, 1), 1, [group.group_id for group in taken])
    assert store.num_missing(step, 1) == 0 and store.num_missing(step, 3) == 3


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_a_checksum_error(run, script, damage):
    store = run.rollouts()
    fill(store, script, 0)
    path = blobs_of(run)[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes({"cut": data[:-40], "flip": data, "empty": b""}[damage])
    with pytest.raises(ChecksumError, match=r"g00000.*expected.*restore"):
        store.get(0)
    with pytest.raises(ChecksumError):
        store.take(StepRule(1), 0, 0)


def test_a_missing_file_is_a_store_error(run, script):
    store = run.rollouts()
    fill(store, script, 0)
    blobs_of(run)[0].unlink()
    with pytest.raises(StoreError, match="can't be read"):
        store.get(0)


def test_opening_sweeps_dead_writers_files_and_spares_live_ones(run, script):
    store = run.rollouts()
    fill(store, script, 0)
    kept = blobs_of(run)[0]
    directory = run.run_dir / "rollouts"
    (directory / ".tmp-dead").write_bytes(b"half")
    (directory / "g00009.000000000000.safetensors").write_bytes(b"no row")
    note = directory / "note.txt"
    note.write_text("not ours")
    live = directory / ".tmp-live"
    live.write_bytes(b"half")
    descriptor = os.open(live, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    run.rollouts()
    assert blobs_of(run) == [live, kept, note]
    os.close(descriptor)
    run.rollouts()
    assert blobs_of(run) == [kept, note]


def test_a_trajectory_is_found_by_its_id_and_listed_with_its_outcome(run, script):
    store = run.rollouts()
    fill(store, script, 0, 1)
    assert store.find("g00001-2").trajectory_id == "g00001-2"
    rows = store.trajectories()
    assert [row.trajectory_id for row in rows[:2]] == ["g00000-0", "g00000-1"]
    assert [(row.outcome, row.reward) for row in rows[:4]] == [
        ("violation", 0.0),
        ("resolved", 1.0),
        ("environment_error", None),
        (None, None),
    ]
    with pytest.raises(StoreError, match="no trajectory 'nobody'"):
        store.find("nobody")


def test_the_database_of_another_run_is_refused(run, tmp_path):
    run.rollouts()
    url = run.url or f"sqlite:///{run.run_dir / 'index.sqlite'}"
    with pytest.raises(StoreError, match="another run"):
        RolloutStore(tmp_path / "other", url)


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "postgresql://nobody:secret@127.0.0.1:1/x"])
def test_an_unusable_url_is_one_line_without_its_password(tmp_path, url):
    with pytest.raises(StoreError) as caught:
        RolloutStore(tmp_path, url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
