"""Tools for people: the command line, local clusters, the demonstration, benchmarks, faults on real processes."""
