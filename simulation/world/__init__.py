"""A run from its plan to its result: what is built, its course, its traces, and what must hold at its end."""
