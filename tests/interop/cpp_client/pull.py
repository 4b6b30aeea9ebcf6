"""A pull consumer of the C++ client: reads every queue of a topic to its end, ``--rounds`` times."""

from __future__ import annotations

from rocketmq.client import PullConsumer

from tests.interop.cpp_client.common import connect, emit, message_fields, options


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--expression", default="*")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-num", type=int, default=32)
    args = parser.parse_args()

    consumer = PullConsumer(args.group)
    connect(consumer, args)
    consumer.start()
    emit("started")
    for _ in range(args.rounds):
        for message in consumer.pull(args.topic, args.expression, args.max_num):
            emit("message", **message_fields(message))
    emit("done")
    consumer.shutdown()
    emit("stopped")


if __name__ == "__main__":
    main()
