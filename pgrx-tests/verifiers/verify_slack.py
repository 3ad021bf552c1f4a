"""Reads a line of JSON (secret, headers) and a raw body; says what slack_sdk thinks of them."""

import json
import sys

from slack_sdk.signature import SignatureVerifier

request = json.loads(sys.stdin.buffer.readline())
body = sys.stdin.buffer.read()
accepted = SignatureVerifier(request["secret"]).is_valid_request(body, request["headers"])
print("accepted" if accepted else "refused: no signature of this secret")
