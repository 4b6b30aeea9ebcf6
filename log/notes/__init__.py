"""The notes of a store beside its log: term and vote, checkpoint, snapshot, the format it is written in."""
