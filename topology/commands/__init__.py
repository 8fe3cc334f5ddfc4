"""The commands of ``python -m collectives.topology``, one module each: ``add`` its options, and ``run`` it."""
