"""Reads a line of JSON (secret, headers) and a raw body; says what standardwebhooks thinks of them."""

import json
import sys

from standardwebhooks import Webhook, WebhookVerificationError

request = json.loads(sys.stdin.buffer.readline())
body = sys.stdin.buffer.read()
try:
    Webhook(request["secret"]).verify(body, request["headers"])
    print("accepted")
except WebhookVerificationError as error:
    print(f"refused: {error}")
