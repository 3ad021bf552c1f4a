"""Reads a line of JSON (public key, headers) and a raw body. The headers are read, and the content that is signed is made, by
authweave-webhooks, somebody else's implementation of the signatures by keys of Standard Webhooks.

The package itself wants a newer Python than Debian 12 has, and its core; the part of it that reads headers does not."""

import base64
import importlib.util
import json
import sys
import types

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

package = types.ModuleType("authweave_webhooks")
package.__path__ = importlib.util.find_spec("authweave_webhooks").submodule_search_locations
sys.modules["authweave_webhooks"] = package

from authweave_webhooks.errors import WebhookVerificationError  # noqa: E402
from authweave_webhooks.headers import build_signing_input, parse_headers  # noqa: E402

request = json.loads(sys.stdin.buffer.readline())
body = sys.stdin.buffer.read()
key = Ed25519PublicKey.from_public_bytes(base64.b64decode(request["secret"].removeprefix("whpk_")))


def signs(signature: bytes, content: bytes) -> bool:
    try:
        key.verify(signature, content)
        return True
    except InvalidSignature:
        return False


try:
    read = parse_headers(request["headers"], body=body)
    content = build_signing_input(webhook_id=read.webhook_id, timestamp=read.timestamp, body=body)
    is_signed = any(signs(signature, content) for signature in read.signatures)
    print("accepted" if is_signed else "refused: no signature is of this key")
except WebhookVerificationError as error:
    print(f"refused: {error}")
