"""Sweep the collectives over message sizes, beside their peers, in the manner of nccl-tests.

``python -m collectives.bench all_reduce -b 8 -e 64M -f 2`` under mpirun, torchrun or srun, or by itself
with ``-np 2``.
"""
