"""Raft as a pure state machine; start reading at core.py, effects.py and messages.py."""

from raft.configuration import AddLearner, Change, Configuration, PromoteLearner, RemoveMember
from raft.core import Raft
from raft.effects import Role
from raft.options import RaftOptions
from raft.reasons import Cause, Reason
from raft.recovery_loss import Loss
from raft.state import HardState
from raft.terms import LogTerms

__all__ = [
    "AddLearner",
    "Cause",
    "Change",
    "Configuration",
    "HardState",
    "LogTerms",
    "Loss",
    "PromoteLearner",
    "Raft",
    "RaftOptions",
    "Reason",
    "RemoveMember",
    "Role",
]
