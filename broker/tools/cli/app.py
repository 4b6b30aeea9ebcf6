"""The table of commands.

Each is imported when it is called; the one-line helps stand here so that ``trivet --help`` imports none of them. A
command's own ``--help`` is its docstring.
"""

from cyclopts import App

_COMMANDS = (
    ("namesrv", "broker.tools.cli.servers:namesrv", "Run a name server."),
    ("broker", "broker.tools.cli.servers:broker", "Run one broker of a group."),
    ("cluster", "broker.tools.cli.local_cluster:cluster", "Run a local name server and group until Ctrl-C."),
    ("topic", "broker.tools.cli.topics:app", "Create, list, describe, alter, move and delete topics."),
    (
        "consumer",
        "broker.tools.cli.consumers:app",
        "Show consumer groups, their lag and members; send one elsewhere; delete one.",
    ),
    ("client", "broker.tools.cli.clients:app", "Show who is connected."),
    (
        "message",
        "broker.tools.cli.single_messages:app",
        "Find and show messages, the way of one, what waits.",
    ),
    ("dlq", "broker.tools.cli.dead_letters:app", "List, show, send again and delete dead letters."),
    (
        "group",
        "broker.tools.cli.groups:app",
        "Show, add, promote and remove members of a group; move its leadership.",
    ),
    ("produce", "broker.tools.cli.messages:produce", "Send messages."),
    ("consume", "broker.tools.cli.messages:consume", "Read messages."),
    ("tail", "broker.tools.cli.tail:tail", "Follow a topic."),
    ("top", "broker.tools.cli.top:top", "Show rates and lag, renewed every few seconds."),
    ("status", "broker.tools.cli.status:status", "Show roles, terms, indices and the lag of each replica."),
    (
        "console",
        "broker.tools.cli.console:console",
        "Serve a page that shows the cluster, and can change it.",
    ),
    ("doctor", "broker.tools.cli.doctor:doctor", "Look for what is wrong, and say what to do."),
    ("config", "broker.tools.cli.node_settings:app", "Show and change settings of running brokers."),
    ("acl", "broker.tools.cli.accounts:app", "List, show, check and change accounts."),
    ("backup", "broker.tools.cli.backups:app", "Copy a running group's log and state into a directory."),
    ("restore", "broker.tools.cli.backups:restore", "Make a node's store from a backup."),
    ("migrate", "broker.tools.cli.migrate:migrate", "Make a backup of a RocketMQ DLedger node's store."),
    (
        "demo",
        "broker.tools.cli.demo:demo",
        "Send text through a group whose leader is killed, and check what clients saw.",
    ),
    ("analyze", "broker.tools.cli.analysis:analyze", "Decide with Spark whether traces are linearizable."),
    (
        "simulate",
        "broker.tools.cli.simulate:simulate",
        "Run a whole group in a simulated world full of faults.",
    ),
    (
        "chaos",
        "broker.tools.cli.chaos:chaos",
        "Run a real group under load and faults, and judge what clients saw.",
    ),
    (
        "bench",
        "broker.tools.cli.benchmark:bench",
        "Measure a local group against the limits of this machine.",
    ),
    (
        "completion",
        "broker.tools.cli.completion:completion",
        "Print a script by which a shell completes commands.",
    ),
)


def build_app(called: str = "") -> App:
    """The command line, nothing of it imported yet; the command that is `called` helps with its docstring."""
    commands = {name: (target, summary) for name, target, summary in _COMMANDS}
    app = App(
        name="trivet",
        help="A RocketMQ-compatible message broker on Raft, and the tools to check it.",
        version=_version,
        backend="trio",
        # Docstrings have lines of their own, which Markdown lets flow; the list of commands needs no parser for that.
        help_format="markdown" if called in commands else "plaintext",
    )
    for name, (target, summary) in commands.items():
        app.command(target, name=name, help=None if name == called else summary)
    return app


def _version() -> str:
    from broker.state.release import THIS_RELEASE

    release = THIS_RELEASE
    protocols = f"protocols {release.oldest_protocol} to {release.newest_protocol}"
    return f"{release.name}, {protocols}, formats 1 to {release.newest_format}"
