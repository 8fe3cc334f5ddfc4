"""Run with: python -m collectives.launch -np 2 examples/all_reduce.py (or mpirun, torchrun, srun)."""

import numpy as np

import collectives

with collectives.Communicator() as comm:  # whoever mpirun, torchrun, srun or collectives.launch started
    x = np.full(4, comm.rank + 1.0, dtype=np.float32)
    comm.all_reduce(x)  # in place; x now holds the sum, the same bits on every rank
    print(f"rank {comm.rank}: {x} by {comm.last_receipt().algorithm}")
