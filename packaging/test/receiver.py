#!/usr/bin/python3
"""receiver.py PORT FILE: answers every POST with 204, and appends its webhook-id to FILE."""
import http.server
import sys


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[2], "a") as file:
            print(self.headers["webhook-id"], file=file)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
