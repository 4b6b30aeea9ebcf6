"""The work of the clients of a world, through the client that users have.

An actor is a module here with a `main(context, runtime, writer)`, and a row in `ACTORS`. Which actors a run has is
drawn with its plan, each from a random stream of its own, so that a new actor leaves the old ones' seeds as they are as
far as the actors are concerned. docs/simulation-extending.md says how to add one.
"""

import functools
from typing import Final

from simulation.workload.actor import Actor
from simulation.workload.administer import administer
from simulation.workload.archive import archive
from simulation.workload.audit import audit
from simulation.workload.configure import configure
from simulation.workload.configure_rules import Configurations
from simulation.workload.consume import consume
from simulation.workload.crowd import crowd
from simulation.workload.found import Rooms, found
from simulation.workload.inquire import Inquiries, inquire
from simulation.workload.keep import Keys, keep
from simulation.workload.one_way import Notes, post
from simulation.workload.operate import operate
from simulation.workload.order import Orders, handle_in_order
from simulation.workload.pick import Picks, pick
from simulation.workload.postpone import Postponed, postpone
from simulation.workload.produce import produce
from simulation.workload.pull import Pulls, pull
from simulation.workload.receive import Broadcasts, receive
from simulation.workload.report import Reports, report
from simulation.workload.request import Letters, correspond
from simulation.workload.reset import reset
from simulation.workload.reset_rules import Resets
from simulation.workload.restrict import restrict
from simulation.workload.restrict_rules import Restrictions
from simulation.workload.retry import Retries, deliver
from simulation.workload.stranger import loiter
from simulation.workload.subscribe import Subscriptions, subscribe
from simulation.workload.tenant import Tenancies, tenant
from simulation.workload.timed import Timers, schedule
from simulation.workload.transact import Transactions, transact
from simulation.workload.waver import waver
from simulation.workload.write import Portions, write

ACTORS: Final[dict[str, Actor]] = {
    "producer": Actor(
        functools.partial(produce, retry_unknown=True, exactly_once=True),
        processes=lambda producers: (producers + 1) // 2,
        at_most_once=True,
    ),
    "repeater": Actor(functools.partial(produce, retry_unknown=True, exactly_once=False), share=0.3),
    "careful": Actor(
        functools.partial(produce, retry_unknown=False, exactly_once=False),
        processes=lambda producers: producers // 2,
        at_most_once=True,
    ),
    "consumer": Actor(consume, processes=lambda producers: 2),
    "auditor": Actor(audit, processes=lambda producers: 2),
    "administrator": Actor(administer),
    "transactor": Actor(transact, share=0.4, processes=lambda producers: 2, invariant=Transactions),
    "scheduler": Actor(schedule, share=0.4, invariant=Timers),
    "operator": Actor(operate, processes=lambda producers: 2),
    "clerk": Actor(handle_in_order, share=0.4, processes=lambda producers: 3, invariant=Orders),
    "picker": Actor(pick, share=0.3, processes=lambda producers: 2, invariant=Picks),
    "courier": Actor(deliver, share=0.35, processes=lambda producers: 2, invariant=Retries),
    "puller": Actor(pull, share=0.3, invariant=Pulls),
    "receiver": Actor(receive, share=0.3, processes=lambda producers: 2, invariant=Broadcasts),
    "inquirer": Actor(inquire, share=0.3, invariant=Inquiries),
    "correspondent": Actor(correspond, share=0.35, processes=lambda producers: 2, invariant=Letters),
    "poster": Actor(post, share=0.3, at_most_once=True, invariant=Notes),
    "resetter": Actor(reset, share=0.3, processes=lambda producers: 2, invariant=Resets),
    "configurer": Actor(configure, share=0.3, invariant=Configurations),
    "archivist": Actor(archive, share=0.25),
    "warden": Actor(restrict, share=0.3, processes=lambda producers: 2, invariant=Restrictions),
    "keeper": Actor(keep, share=0, processes=lambda producers: 2, at_most_once=True, invariant=Keys),
    "tenant": Actor(tenant, share=0.0, invariant=Tenancies),
    "crowd": Actor(crowd, share=0.0, processes=lambda producers: 3),
    "stranger": Actor(loiter, share=0.0, processes=lambda producers: 2),
    "writer": Actor(write, share=0.0, processes=lambda producers: 2, at_most_once=True, invariant=Portions),
    "reporter": Actor(report, share=0.0, invariant=Reports),
    "postponer": Actor(postpone, share=0.0, invariant=Postponed),
    "subscriber": Actor(subscribe, share=0.0, invariant=Subscriptions),
    "founder": Actor(found, share=0.0, invariant=Rooms),
    "waverer": Actor(waver, share=0.0, processes=lambda producers: 2, invariant=Transactions),
}
"""By the name that its hosts bear, with a number. Those of a share of 1 make up the load that every run has, and one of
0 is for plans with several groups."""
