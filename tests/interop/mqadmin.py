"""mqadmin, the reference's administration command, as a test runs it: words in, what an operator reads out.

One process serves all commands of a test session (java/src/trivet/interop/Admin.java), since starting a Java virtual
machine takes longer than most commands.
"""

from __future__ import annotations

from tests.interop.clients import Client
from tests.interop.processes import Child
from tests.interop.reference import LOGBACK

COMMAND_LIMIT_S = 120
START_LIMIT_S = 120


class Mqadmin:
    """One process of mqadmin, of the version of `client`, started at the first command. Its commands run in turn.

    Both versions sign with the account that stands in a file, tools.yml, if there is one.
    """

    def __init__(self, client: Client, access_key: str = "", secret_key: str = "") -> None:
        self._client = client
        self._account = f"accessKey: {access_key}\nsecretKey: {secret_key}\n" if access_key else ""
        self._process: Child | None = None

    def __call__(self, *words: str, excused: str | None = None, name_server: str | None = None) -> str:
        """Runs one command and gives what it printed; fails on an exception in its output but `excused`."""
        output = self._run([*words, "-n", name_server or self._client.name_server])
        if "Exception" in output and (excused is None or excused not in output):
            raise AssertionError(f"mqadmin {' '.join(words)}\n{output}")
        return output

    def help(self) -> str:
        """mqadmin's own list of its commands."""
        return self._run([])

    def _run(self, words: list[str]) -> str:
        if self._process is None or self._process.process.poll() is not None:
            self._process = self._start()  # mqadmin ends the process over words that it does not know
        done = len(self._process.of("admin"))
        self._process.write_line("\t".join(words))
        return str(self._process.wait_for("admin", COMMAND_LIMIT_S, count=done + 1)[-1]["output"])

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def _start(self) -> Child:
        # 4.9 reads its logging configuration from here and nowhere else.
        folder = self._client.folder / "conf"
        folder.mkdir(exist_ok=True)
        (folder / "logback_tools.xml").write_text(LOGBACK)
        if self._account:
            (folder / "tools.yml").write_text(self._account)
        process = self._client.start("admin")
        process.wait_for("started", START_LIMIT_S)
        return process
