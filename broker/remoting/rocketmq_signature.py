"""Signatures of requests, as RocketMQ 4.x clients make them (`AclClientRPCHook`).

A client adds its AccessKey to the extFields and signs the values of all of them, in the order of their names, and the
body. The signature says that the sender knows the secret key, and that nothing was changed under way; it has neither
time nor counter, so that whoever can listen can send the same request again: that is what TLS is for.
"""

import base64
import hmac
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"

_UNSIGNED: Final = frozenset({SIGNATURE, "_UNIQUE_KEY_QUERY"})
"""Fields that are added after a client has signed."""


def signature(secret_key: str, fields: Mapping[str, str], body: bytes | bytearray | memoryview) -> str:
    """Base64 of the HMAC-SHA-1 over what is signed of a request."""
    text = "".join(fields[name] for name in sorted(fields) if name not in _UNSIGNED)
    digest = hmac.new(secret_key.encode(), text.encode(), "sha1")
    digest.update(body)
    return base64.b64encode(digest.digest()).decode()
