"""The commands of ``python -m collectives.topology``, a module each: ``add`` its options, ``run`` it."""
