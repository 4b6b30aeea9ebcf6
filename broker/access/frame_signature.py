"""Trivet's own signature, over the whole frame (docs/security.md).

The signature of RocketMQ 4.x (`broker.remoting.rocketmq_signature`) covers the values of a request's fields, not their
names, not its code, and nothing that tells one time from another: whoever sees one signed request can send another one
that has the same values under other names, as often as he likes. This one covers everything that a server looks at, and
the nonce of the connection's greeting (`broker.requests.greeting`).

It travels in a field of its own, which servers that do not know it ignore. Pure functions.
"""

import base64
import hashlib
import hmac
from typing import Final

from broker.remoting.command import RemotingCommand
from broker.remoting.rocketmq_signature import ACCESS_KEY

FRAME_SIGNATURE: Final = "TrivetSignature"


def frame_signature(secret_key: str, nonce: bytes, command: RemotingCommand) -> str:
    """Returns base64 of the HMAC-SHA-256 over the nonce, the header and the body of a request.

    Raises `HeaderFieldError` for a received request whose fields are malformed.
    """
    fields = command.fields
    signed = [item for item in sorted(fields.items()) if item[0] != FRAME_SIGNATURE]
    # Each text stands behind its length, and the number of fields comes first: no two different requests have the same.
    parts = [
        f"trivet frame 1 {command.code} {command.flag} {command.version} {command.opaque} {len(signed)}",
        _counted(str(command.language)),
        _counted(command.remark or ""),
        *[f"{len(name)} {name}{len(value)} {value}" for name, value in signed],
    ]
    # The body by its digest: it may be a view of megabytes, which is not to be copied.
    text = "\n".join(parts).encode("utf-8", "surrogatepass")
    whole = b"".join((nonce, text, hashlib.sha256(command.body).digest()))
    return base64.b64encode(hmac.digest(secret_key.encode(), whole, "sha256")).decode()


def _counted(text: str) -> str:
    return f"{len(text)} {text}"


def sign_frame(access_key: str, secret_key: str, nonce: bytes, command: RemotingCommand) -> None:
    """Adds the account's name and its signature to a request that is complete, its opaque included."""
    fields = {**command.fields, ACCESS_KEY: access_key}
    command.header = fields
    fields[FRAME_SIGNATURE] = frame_signature(secret_key, nonce, command)
