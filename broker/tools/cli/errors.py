"""Failures of a command, and their exit codes."""

FAILED = 1
USAGE = 2
ANALYSIS_FAILED = 4
INTERRUPTED = 130


class CommandError(Exception):
    """Ends the command with one line for the person who called it and an exit code."""

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code
