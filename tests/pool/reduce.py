# SPDX-License-Identifier: Apache-2.0
"""`allreduce` of views of a pool: what is refused, and that the kernel is what is missing on the simulated driver."""

from common import Pool, begin, drop, np, nvsym, raises

ctx = begin()
me, n = ctx.my_pe(), ctx.n_pes()
devices = ctx.devices()
pool = Pool.allocate(devices, 1 << 16)
own = pool.unicast_view(devices[me]).view(np.float32)
dest, source = own[:100], own[100:200]
symmetric = nvsym.SHMEMBuffer[np.float32].zeros(100)

# With everything in place it is the compiler that is missing here.
raises(ValueError, "'multimem'", "simulated", call=lambda: nvsym.allreduce(dest, source))
raises(ValueError, "'multimem'", "simulated", call=lambda: nvsym.allreduce(dest, dest, algorithm="multimem"))
raises(ValueError, "'two_shot'", call=lambda: nvsym.allreduce(dest, source, algorithm="two_shot"))
raises(TypeError, "source", call=lambda: nvsym.allreduce(dest, symmetric))
raises(TypeError, "source", call=lambda: nvsym.allreduce(symmetric, source))
raises(ValueError, "elements", call=lambda: nvsym.allreduce(dest, source[:99]))
raises(TypeError, "dtype", call=lambda: nvsym.allreduce(dest, source.view(np.int32)))
raises(ValueError, "overlaps", call=lambda: nvsym.allreduce(own[0:4], own[2:6]))
raises(ValueError, "mean", call=lambda: nvsym.allreduce(dest, source, "mean"))
other = pool.unicast_view(devices[(me + 1) % n]).view(np.float32)[:100]
raises(ValueError, "own device", call=lambda: nvsym.allreduce(other, source))
raises(ValueError, "no view of a SymmetricPool", call=lambda: nvsym.allreduce(symmetric.peer(me), symmetric.peer(me)))
team = nvsym.TEAM_WORLD.split_strided(0, 1, 1)
if team is not None:
    raises(ValueError, "no view of a SymmetricPool", call=lambda: nvsym.allreduce(dest, source, team=team))
    team.destroy()
raises(ValueError, "'multimem'", call=lambda: nvsym.allreduce(symmetric, symmetric, algorithm="multimem"))
drop(pool)
raises(nvsym.NVSymError, call=lambda: nvsym.allreduce(dest, source))
nvsym.finalize()
if me == 0:
    print("done")
