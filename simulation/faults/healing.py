"""The end of all faults of a world's machines."""

from __future__ import annotations

from simulation.faults import disk_faults, operations
from simulation.faults.stage import Stage


def heal_everything(stage: Stage) -> None:
    """Ends all faults: whatever still runs differently from a healthy group is put right."""
    for source in stage.host_names:
        for target in stage.host_names:
            if source != target:
                stage.network.heal(source, target)
    for host in stage.members.machines:
        host.frame_faults.clear()
        host.disk.full = False
        host.disk.used_by_others = 0.0
        host.disk.failing_flushes = host.disk.failing_reads = 0
        host.disk.arm_power_failure(0)
        disk_faults.quicken(host)
        host.free_descriptors()
        host.other_work_ns.clear()
        host.resume()
        operations.finish_upgrade(host)
        host.is_broken = False
        # Last, with a release that is as it should be. What is found damaged beyond repair, now or before, the operator
        # replaces at once: others may wait for this node.
        host.start()
        if host.needs_new_disk:
            stage.members.give_new_disk(host)
            host.start()
    for name_server in stage.name_servers:
        name_server.heal()
    for client in stage.clients:
        client.resume()
        client.start()
