# SPDX-License-Identifier: Apache-2.0
"""Teams: their members and numbers, splits of splits, their end, and that they are given back."""

import gc

import numpy as np
import pytest

import nvsym

PES = pytest.mark.pes(1, 2, 4)
NODES = pytest.mark.pes(4, nodes=2)


def numbers(team):
    """The members' world numbers, as found by a collective of the team."""
    mine = nvsym.SHMEMBuffer["int64"].adopt(scratch.unsafe_ptr(), 1)
    everyone = nvsym.SHMEMBuffer["int64"].adopt(scratch.unsafe_ptr() + 64, team.n_pes())
    np.asarray(mine)[0] = nvsym.my_pe()
    nvsym.fcollect(everyone, mine, team=team)
    return everyone.to_numpy().tolist()


@pytest.fixture
def work(ctx):
    """Some symmetric memory for `numbers`, which not all PEs call."""
    global scratch
    scratch = nvsym.SHMEMBuffer["int64"].zeros(64)
    yield
    nvsym.barrier_all()
    scratch.free()


@PES
@NODES
def test_predefined_teams(ctx, work):
    me, n, nodes = ctx.my_pe(), ctx.n_pes(), ctx.nodes()
    here = [pe for pe in range(n) if nodes[pe] == nodes[me]]
    for team, members in ((nvsym.TEAM_WORLD, list(range(n))), (nvsym.TEAM_NODE, here), (nvsym.TEAM_SHARED, here)):
        assert team.pes == members == numbers(team)
        assert team.n_pes() == len(members)
        assert members[team.my_pe()] == me
        with pytest.raises(ValueError, match="predefined"):
            team.destroy()
        with team as same:
            assert same is team
        assert team.my_pe() == members.index(me)
        assert f"PE {team.my_pe()} of {len(members)}" in repr(team)
        with pytest.raises(TypeError, match="pickled"):
            team.__reduce__()
    with pytest.raises(TypeError, match="split_strided"):
        nvsym.Team()


@pytest.mark.pes(4)
@NODES
@pytest.mark.parametrize(("start", "stride", "size"), [
    (0, 1, 4), (0, 1, 2), (1, 2, 2), (3, -1, 4), (3, -2, 2), (2, 1, 1), (2, 0, 1), (0, 3, 2),
])  # fmt: skip
def test_split_strided(ctx, work, start, stride, size):
    members = [start + i * stride for i in range(size)]
    team = nvsym.TEAM_WORLD.split_strided(start, stride, size)
    if ctx.my_pe() not in members:
        assert team is None
        return
    assert team.pes == members == numbers(team)
    assert team.my_pe() == members.index(ctx.my_pe())
    assert "TEAM_WORLD" in repr(team)
    total = nvsym.SHMEMBuffer["int64"].adopt(scratch.unsafe_ptr() + 256, 1)
    np.asarray(total)[0] = ctx.my_pe()
    nvsym.allreduce(total, total, team=team)
    assert total.to_numpy()[0] == sum(members)
    team.destroy()


@PES
@NODES
@pytest.mark.parametrize("xrange", [1, 2, 3, 4, 100])
def test_split_2d(ctx, work, xrange):
    me, n = ctx.my_pe(), ctx.n_pes()
    x, y = nvsym.TEAM_WORLD.split_2d(xrange)
    assert x.pes == [pe for pe in range(n) if pe // xrange == me // xrange] == numbers(x)
    nvsym.barrier_all()  # `work` is one piece of memory
    assert y.pes == [pe for pe in range(n) if pe % xrange == me % xrange] == numbers(y)
    with y, x:
        pass
    for team in (x, y):
        with pytest.raises(nvsym.NVSymError, match="destroyed"):
            team.my_pe()


@pytest.mark.pes(4)
@NODES
def test_split_of_a_split(ctx, work):
    me = ctx.my_pe()
    backwards = nvsym.TEAM_WORLD.split_strided(3, -1, 4)
    assert backwards.my_pe() == 3 - me
    pair = backwards.split_strided(1, 2, 2)  # world 2 and 0
    if me % 2:
        assert pair is None
    else:
        assert pair.pes == [2, 0] == numbers(pair)
        single = pair.split_strided(1, -1, 2).split_strided(1, 1, 1)
        assert (single is None) == (me == 0)
    nvsym.barrier_all()
    # Translation between any two.
    assert [backwards.translate_pe(i, nvsym.TEAM_WORLD) for i in range(4)] == [3, 2, 1, 0]
    if pair is not None:
        assert [backwards.translate_pe(i, pair) for i in range(4)] == [-1, 0, -1, 1]
        assert [pair.translate_pe(i, backwards) for i in range(2)] == [1, 3]
        for bad in (-1, 2):
            with pytest.raises(ValueError, match=f"pe: {bad}"):
                pair.translate_pe(bad, backwards)
    for bad in (0.0, "0", None):
        with pytest.raises(TypeError, match=f"pe: .*{type(bad).__name__}"):
            backwards.translate_pe(bad, nvsym.TEAM_WORLD)
    assert backwards.translate_pe(np.int64(3), nvsym.TEAM_WORLD) == 0
    with pytest.raises(TypeError):
        backwards.translate_pe(0, None)
    nvsym.barrier_all()
    # A parent may go before its child.
    backwards.destroy()
    if pair is not None:
        assert numbers(pair) == [2, 0]
        pair.destroy()


@PES
@NODES
def test_bad_splits_raise_on_all(ctx):
    n, world = ctx.n_pes(), nvsym.TEAM_WORLD
    for arguments, text in (
        ((0, 1, 0), "size: 0"),
        ((0, 1, -1), "size: -1"),
        ((0, 0, 2), "stride: 0|size=2"),
        ((0, 1, n + 1), f"PE {n} is not in"),
        ((-1, 1, 1), "start=-1"),
        ((n, 1, 1), f"start={n}"),
        ((0, -1, 2), "stride=-1"),
    ):
        with pytest.raises(ValueError, match=text):
            world.split_strided(*arguments)
    with pytest.raises(ValueError, match="xrange: 0"):
        world.split_2d(0)
    for bad in (
        lambda: world.split_2d("2"),
        lambda: world.split_strided(0, 1),
        lambda: world.split_strided(0.5, 1, 1),
        lambda: world.split_strided(False, 1, 1),
        lambda: world.split_2d(True),
        lambda: world.create_group([False]),
    ):
        with pytest.raises(TypeError):
            bad()
    world.split_strided(0, 1, n).destroy()


@pytest.mark.pes(2, 4)
@NODES
def test_splits_that_differ_raise_on_all(ctx):
    me, n, world = ctx.my_pe(), ctx.n_pes(), nvsym.TEAM_WORLD
    others = r"PE 0.*: "  # and those that called as it did
    for call, text in (
        (
            lambda: world.split_strided(0, 1, 1 + (me == 1)),
            rf"{others}'split_strided\(start=0, stride=1, size=1\)'; PE 1.*: 'split_strided\(start=0, stride=1, size=2\)'",
        ),
        (
            lambda: world.split_strided(0, 1 - 2 * (me == 1), 1),
            rf"{others}'split_strided\(start=0, stride=1, size=1\)'; PE 1.*: 'split_strided\(start=0, stride=-1, size=1\)'",
        ),
        (lambda: world.split_2d(1 + (me == 1)), rf"{others}'split_2d\(xrange=1\)'; PE 1.*: 'split_2d\(xrange=2\)'"),
        (
            lambda: world.split_2d(1) if me == 1 else world.split_strided(0, 1, 1),
            rf"{others}'split_strided\(start=0, stride=1, size=1\)'; PE 1.*: 'split_2d\(xrange=1\)'",
        ),
        (
            lambda: nvsym.collect() if me == 1 else world.split_strided(0, 1, 1),
            r"PE 0.*a team's split; PE 1.*collect\(\)",
        ),
    ):
        with pytest.raises(nvsym.CollectiveError, match=text):
            call()
    # Bad on one PE only: its reason, on all.
    with pytest.raises(ValueError, match=f"failed on 1 of {n} PEs.*PE 1 .*size: 0"):
        world.split_strided(0, 1, int(me != 1))
    world.split_strided(0, 1, n).destroy()


@PES
@NODES
def test_use_after_destroy(ctx):
    team = nvsym.TEAM_WORLD.split_strided(0, 1, ctx.n_pes())
    a = nvsym.SHMEMBuffer["float32"].zeros(4)
    team.destroy()
    for call in (
        team.my_pe,
        team.n_pes,
        team.destroy,
        lambda: team.pes,
        lambda: team.split_2d(1),
        lambda: team.translate_pe(0, team),
        lambda: nvsym.TEAM_WORLD.translate_pe(0, team),
        lambda: nvsym.barrier(team),
        lambda: nvsym.allreduce(a, a, team=team),
        lambda: team.__enter__(),
    ):
        with pytest.raises(nvsym.NVSymError, match="destroyed"):
            call()
    assert "destroyed" in repr(team)
    nvsym.barrier_all()


@PES
@NODES
def test_teams_are_given_back(ctx):
    """More than there may be at a time, one after the other; also those that were only used on a stream."""
    n = ctx.n_pes()
    stream = nvsym.Stream()
    a = nvsym.SHMEMBuffer["int64"].full(4, 1)
    for i in range(40):
        with nvsym.TEAM_WORLD.split_strided(n - 1, -1, n) as team:
            nvsym.allreduce(a, a, "max", team=team, stream=None if i % 2 else stream)
            nvsym.barrier(team, stream=stream)
            stream.synchronize()
    assert (a.to_numpy() == 1).all()
    nvsym.barrier_all()


@pytest.mark.pes(2)
@pytest.mark.pes(2, nodes=2)
def test_a_new_team_in_an_old_place(ctx):
    """A team that takes the control block of another starts afresh."""
    me = ctx.my_pe()
    a = nvsym.SHMEMBuffer["int64"].zeros(4)
    for i in range(20):
        team = nvsym.TEAM_WORLD.split_strided(0, 1, 2)
        for j in range(i % 4):
            np.asarray(a)[:] = me + i + j
            nvsym.allreduce(a, a, team=team)
            assert (np.asarray(a) == 2 * (i + j) + 1).all()
        team.destroy()
    gc.collect()
    nvsym.barrier_all()


@pytest.mark.parametrize("nodes", [1, 2])
def test_exhaustion(mpirun, nodes):
    """One too many raises on all; after one is destroyed there is room again; the rest is left to finalize."""
    done = mpirun(
        2,
        """
        import nvsym
        ctx = nvsym.init(heap_size="1M")
        teams = []
        try:
            while len(teams) < 100:
                teams.append(nvsym.TEAM_WORLD.split_strided(0, 1, 2))
        except nvsym.NVSymError as error:
            print(len(teams), type(error).__name__, error)
        # The PEs have different ones: each its own.
        single = None
        try:
            single = nvsym.TEAM_WORLD.split_2d(1)
        except nvsym.NVSymError as error:
            print("full", error)
        teams.pop(1).destroy()
        teams.append(nvsym.TEAM_WORLD.split_strided(1, -1, 2))
        a = nvsym.SHMEMBuffer["int64"].full(1, 1)
        for team in teams:
            nvsym.allreduce(a, a, team=team)
        print(a.to_numpy()[0] == 2 ** len(teams))
        nvsym.finalize()
        nvsym.init(heap_size="1M")
        print(nvsym.TEAM_WORLD.split_strided(0, 1, 2).n_pes())
        """,
        nodes=nodes,
        env={"NVSYM_MAX_TEAMS": "8"},
    )
    for text in done.pe_stdout:
        lines = text.splitlines()
        assert lines[0].startswith("5 ")
        assert "NVSYM_MAX_TEAMS" in lines[0]
        assert lines[1].startswith("full")
        assert lines[2:] == ["True", "2"]


def test_no_communicator_is_left(mpirun):
    """MPI has so many. One error on all PEs, which says so; afterwards the job goes on, and a team may come again."""
    done = mpirun(
        3,
        """
        import nvsym
        from mpi4py import MPI

        ctx, world = nvsym.init(heap_size="1M"), nvsym.TEAM_WORLD
        mine, a = [], nvsym.SHMEMBuffer["int64"].full(1, 1)
        try:
            while ctx.my_pe() < 2:
                mine.append(MPI.COMM_SELF.Dup())
                assert len(mine) < 10000
        except MPI.Exception:
            pass

        def split():
            try:
                return world.split_strided(0, 1, 2)
            except nvsym.BackendError as error:
                assert "communicator" in str(error) and "run out" in str(error), error
                print("none left", flush=True)

        assert split() is None and split() is None
        nvsym.allreduce(a, a)
        assert a.to_numpy()[0] == 3
        nvsym.collect()
        for comm in mine:
            comm.Free()
        team = split()
        if team is not None:
            team.destroy()
        assert (team is None) == (ctx.my_pe() == 2)
        """,
    )  # fmt: skip
    assert done.pe_stdout == ["none left\nnone left\n"] * 3


def test_a_team_whose_last_call_ran_after_its_end_leaves_no_communicator(mpirun):
    """MPI has so many, for all jobs of a process."""
    mpirun(
        2,
        """
        import nvsym
        from mpi4py import MPI

        mine = []
        try:
            while True:
                mine.append(MPI.COMM_SELF.Dup())
                assert len(mine) < 10000
        except MPI.Exception:
            pass
        for _ in range(12):     # a job takes eight at a time
            mine.pop().Free()
        for _ in range(8):
            me = nvsym.init(heap_size="1M").my_pe()
            a, signal = nvsym.SHMEMBuffer["int64"].full(1, 1), nvsym.SHMEMBuffer["uint64"].zeros(1)
            stream, team = nvsym.Stream(), nvsym.TEAM_WORLD.split_strided(0, 1, 2)
            nvsym.signal_wait_until(signal, "eq", 1, stream=stream)
            nvsym.allreduce(a, a, team=team, stream=stream)
            team.destroy()
            nvsym.signal_op(signal, 1, me)
            stream.synchronize()
            assert a.to_numpy()[0] == 2
            nvsym.finalize()
        """,
    )  # fmt: skip


def test_a_with_block_that_ends_the_job(mpirun):
    mpirun(
        2,
        """
        import nvsym

        nvsym.init(heap_size="1M")
        with nvsym.TEAM_WORLD.split_strided(0, 1, 2) as team:
            nvsym.finalize()
        assert "not usable: nvsym.finalize() has been called" in repr(team), repr(team)
        """,
    )


@pytest.mark.pes(4)
@NODES
def test_create_group(ctx, work):
    """Collective over the members alone, in the order that they give."""
    me, n = ctx.my_pe(), ctx.n_pes()
    for members in ([0, 1, 2, 3], [3, 0], [2, 1, 3], [1]):
        if me in members:
            team = nvsym.TEAM_WORLD.create_group(members)
            assert team.pes == members
            assert team.my_pe() == members.index(me)
            assert numbers(team) == members
            # A team of a team: the numbers are those in the team.
            if len(members) > 1 and team.my_pe() < 2:
                inner = team.create_group([1, 0])
                assert inner.pes == [members[1], members[0]] == numbers(inner)
                inner.destroy()
            team.destroy()
    # Disjoint groups at the same time.
    mine = [0, 2] if me % 2 == 0 else [3, 1]
    with nvsym.TEAM_WORLD.create_group(mine) as team:
        assert numbers(team) == mine
    for wrong in ([me, me], [me, n], [me, -1], [(me + 1) % n], []):
        with pytest.raises(ValueError, match=r"^pes: "):
            nvsym.TEAM_WORLD.create_group(wrong)
    with pytest.raises(TypeError, match=r"^pes: "):
        nvsym.TEAM_WORLD.create_group([me, 0.5])
    with pytest.raises(TypeError, match=r"^pes: .*NoneType"):
        nvsym.TEAM_WORLD.create_group(None)


@pytest.mark.pes(4, own_job=True)
def test_create_group_with_different_lists(ctx, work):
    me = ctx.my_pe()
    if me < 3:
        with pytest.raises(nvsym.CollectiveError, match="different lists"):
            nvsym.TEAM_WORLD.create_group([0, 1, 2] if me == 0 else [0, 2, 1])
    nvsym.barrier_all()
    with nvsym.TEAM_WORLD.create_group([3, 2, 1, 0]) as team:
        assert team.my_pe() == 3 - me
    nvsym.barrier_all()


def test_create_group_without_a_member(mpirun):
    """A member that does not come is an error after the time limit, and the job goes on."""
    result = mpirun(
        2,
        """
        import time
        import nvsym
        with nvsym.SHMEMContext(heap_size="8M") as ctx:
            if ctx.my_pe() == 0:
                try:
                    nvsym.TEAM_WORLD.create_group([0, 1])
                except nvsym.PeerTimeoutError as error:
                    print("timed out:", error)
            else:
                time.sleep(1.5)  # the barrier has the same limit
            nvsym.barrier_all()
            with nvsym.SHMEMBuffer["i4"].full(1, 1) as b:
                nvsym.allreduce(b, b)
                assert b.to_numpy()[0] == 2
    """,
        env={"NVSYM_TIMEOUT": "2"},
    )
    assert result.stdout.count("timed out") == 1
