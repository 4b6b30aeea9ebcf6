"""What a group of three costs and yields on this machine, beside the limits that the machine sets.

``trivet bench`` runs the workloads of design.md 4 against fresh local clusters; the names A to E are those of its
tables, so that figures can be read beside other systems'. Client and servers share the machine, as there.
"""
