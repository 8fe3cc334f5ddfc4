"""What collectives cost beside their peers: sweeps in the manner of nccl-tests, models, and process groups.

``python -m collectives.bench all_reduce -b 8 -e 64M -f 2`` under mpirun, torchrun or srun, or by itself
with ``-np 2``; ``model``, ``ddp`` and ``groups`` in the place of a collective are the other subjects.
"""
