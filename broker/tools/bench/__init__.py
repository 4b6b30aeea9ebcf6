"""Measurements of a group of three on this machine, beside the limits that the machine sets.

``trivet bench`` runs the workloads of :mod:`broker.tools.bench.workloads` against fresh local clusters;
docs/benchmarks.md has other systems' figures for the workloads A to E. In all of these measurements client and servers
share one machine.
"""
