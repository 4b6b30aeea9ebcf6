"""Transactions: messages that wait, unseen, until their producer has decided (`TransactionalMessageServiceImpl`).

A half message is an ordinary message of RMQ_SYS_TRANS_HALF_TOPIC, which names its true topic in its properties. Its
producer commits it (the message is stored again, in its true topic), rolls it back, or says nothing. Then a client of
its producer group is asked, and after so many questions it is given up into TRANS_CHECK_MAX_TIME_TOPIC. For each
decided half message RocketMQ writes an operation message with its offset into RMQ_SYS_TRANS_OP_HALF_TOPIC, and finds
the undecided ones by reading both topics side by side.

Three things must hold across failovers: a transaction is decided once, a committed message is there exactly once, an
undecided one is never forgotten. Each decision is one entry, and that entry is the decision:

- a commit is the message itself, in its true topic, with transaction bits 8 and the half message's offset in
  TRAN_PREPARED_QUEUE_OFFSET;
- giving up is the copy in TRANS_CHECK_MAX_TIME_TOPIC, with the same property;
- a rollback is the operation message.

Every replica reads them as they are committed (`Transactions.apply_record`), so which transactions are open is a
function of the log, part of its snapshots, and no half of a decision can be lost: there are no halves. (Deliveries of
delayed messages need an announcement because their progress is one number for many; see broker/delayed/delays.py.)

A leader decides only what the state calls open and has no decision under way. Its own decisions of an earlier term, and
those of leaders before it, are all applied before it serves; an entry of theirs that it does not hold will never be
committed. So two decisions of one transaction cannot both come into the log.

The operation message of a commit is what is left over: it tells RocketMQ's tools what the state knows. Which ones are
still owed is part of the state, so that a leader who dies first leaves them to the next; they are written many at a
time, as by 5.x.

RocketMQ stores a half message again each time that it asks the producer, to count the questions. Here the count is a
command (`CheckTransactions`), and the question leaves once that is committed. Each question is about the only copy of
the half message, so that a decision which answers an earlier question is as good as one which answers the last.

    state/transaction_records.py   the forms of all these messages
    sending.py                     half messages as they come in
    state/open_transactions.py     which transactions are open: replicated
    decisions.py                   END_TRANSACTION, operation messages
    checks.py                      questions, giving up, RESUME_CHECK_HALF_MESSAGE
"""
