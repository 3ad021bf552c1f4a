"""Prints as JSON what the CloudEvents SDK reads in a request: a line of JSON (headers), then the raw body."""

import json
import sys

from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

request = json.loads(sys.stdin.buffer.readline())
body = sys.stdin.buffer.read()
event = from_http(HTTPMessage(request["headers"], body), JSONFormat(), CloudEvent)
attributes = event.get_attributes() | {"time": event.get_time().isoformat()}
print(json.dumps({"attributes": attributes, "data": event.get_data()}))
