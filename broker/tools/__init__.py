"""What people run: the command line, local clusters, the demonstration, benchmarks, faults on real processes."""
