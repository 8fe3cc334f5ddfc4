"""One module for each description of a machine that can be read; each returns the same graph."""
