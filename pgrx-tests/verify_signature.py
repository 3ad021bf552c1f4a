"""Exits 0 if standardwebhooks accepts the request: a line of JSON (secret, headers), then the raw body."""

import json
import sys

from standardwebhooks import Webhook, WebhookVerificationError

request = json.loads(sys.stdin.buffer.readline())
body = sys.stdin.buffer.read()
try:
    Webhook(request["secret"]).verify(body, request["headers"])
except WebhookVerificationError as error:
    sys.exit(f"refused: {error}")
