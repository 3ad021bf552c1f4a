"""Prints as JSON what the official client of Prometheus reads in metrics on standard input."""

import json
import sys

from prometheus_client.parser import text_string_to_metric_families

print(json.dumps([
    {"name": family.name, "type": family.type, "help": family.documentation,
     "samples": [[sample.name, sample.labels, sample.value] for sample in family.samples]}
    for family in text_string_to_metric_families(sys.stdin.buffer.read().decode())
]))
