"""``trivet completion``: a script by which a shell completes commands and options."""

from typing import Annotated, Literal

from cyclopts import Parameter


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that it is for.")],
    /,
) -> int:
    """Print a completion script. For bash: trivet completion bash > ~/.local/share/bash-completion/completions/trivet

    For zsh a file _trivet in a directory of fpath, for fish ~/.config/fish/completions/trivet.fish.
    """
    from broker.tools.cli.app import build_app

    print(build_app().generate_completion(prog_name="trivet", shell=shell))
    return 0
