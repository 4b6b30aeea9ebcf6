"""File systems without room, for tests on real ones."""

from pathlib import Path


def fill(filler: Path, left_bytes: int = 0) -> None:
    """Takes all that is free on a file system, but for `left_bytes`, with a file of that name."""
    with filler.open("wb", buffering=0) as file:
        piece = bytes(1 << 16)
        while piece:
            try:
                file.write(piece)
            except OSError:
                piece = piece[: len(piece) // 2]
        file.truncate(file.tell() - left_bytes)
