"""A push consumer of the C++ client that reports every message until standard input ends."""

from __future__ import annotations

from rocketmq.client import MessageModel, PushConsumer, RecvMessage

from tests.interop.cpp_client.common import connect, emit, message_fields, options, wait_for_end_of_input


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--expression", default="*")
    parser.add_argument("--orderly", action="store_true")
    parser.add_argument("--broadcast", action="store_true")
    parser.add_argument("--instance", default="")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument(
        "--fail-times", type=int, default=0, help="refuse a message until its retry number is this"
    )
    args = parser.parse_args()

    model = MessageModel.BROADCASTING if args.broadcast else MessageModel.CLUSTERING
    consumer = PushConsumer(args.group, orderly=args.orderly, message_model=model)
    connect(consumer, args)
    consumer.set_thread_count(args.threads)
    if args.instance:
        consumer.set_instance_name(args.instance)

    def on_message(message: RecvMessage) -> None:
        refused = message.reconsume_times < args.fail_times
        emit("refused" if refused else "message", **message_fields(message))
        if refused:
            raise RuntimeError("refused on request of the test")

    consumer.subscribe(args.topic, on_message, args.expression)
    consumer.start()
    emit("started")
    wait_for_end_of_input()
    consumer.shutdown()
    emit("stopped")


if __name__ == "__main__":
    main()
