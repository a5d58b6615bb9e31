"""A client of the frozen v1 wire API that knows nothing of what was added to it: Python's standard library only.

It does what the page asks of people who write their own client: it decides by `error` and `kind`, compares `resolved_at`
by itself with a second of tolerance, skips event types and fields that it does not know, and opens a stream again when it ends.
"""

import base64
import http.client
import json
import socket
import ssl
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode, urlsplit

TOLERANCE = timedelta(seconds=1)


class Refused(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(f"{status} {kind}: {message}")
        self.status, self.kind = status, kind


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Value:
    def __init__(self, body: dict) -> None:
        self.name = body["name"]
        self.data = base64.b64decode(body.get("bytes", ""), validate=True)
        self.version = body.get("version", "")
        self.sensitive = body.get("sensitive", False)
        self.metadata = body["metadata"]
        self.kind = body.get("kind")
        self.stale = body.get("stale", False)
        date = body.get("resolved_at")
        self.resolved_at = datetime.fromisoformat(date.replace("Z", "+00:00")) if date else None


class Client:
    def __init__(self, endpoint: str, token: str, ca: str | None = None) -> None:
        self.endpoint, self.ca = endpoint, ca
        self.headers = {"Authorization": f"Bearer {token}"}
        self.newest: dict[str, datetime] = {}

    def connect(self) -> http.client.HTTPConnection:
        url = urlsplit(self.endpoint)
        if url.scheme == "unix":
            return UnixConnection(url.path)
        if url.scheme == "https":
            context = ssl.create_default_context(cafile=self.ca)
            return http.client.HTTPSConnection(url.hostname, url.port, timeout=30, context=context)
        return http.client.HTTPConnection(url.hostname, url.port, timeout=30)

    def call(self, method: str, path: str, body: dict | None = None) -> dict:
        connection = self.connect()
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, self.headers)
        response = connection.getresponse()
        text = response.read()
        answer = json.loads(text) if response.headers["Content-Type"] == "application/json" else {}
        if response.status != 200:
            error = answer.get("error", {})
            raise Refused(response.status, error.get("kind", "unknown"), error.get("message", text.decode()))
        return answer

    def get(self, name: str) -> Value:
        return Value(self.call("GET", f"/v1/values/{quote(name, safe='')}"))

    def get_many(self, names: list[str]) -> list[Value | Refused]:
        answer = self.call("POST", "/v1/values", {"names": names})
        return [self.entry(value) for value in answer["values"]]

    @staticmethod
    def entry(body: dict) -> Value | Refused:
        if error := body.get("error"):
            return Refused(0, error["kind"], error["message"])
        return Value(body)

    def health(self) -> str:
        return self.call("GET", "/v1/healthz")["status"]

    def watch(self, *names: str):
        """Yields values and refusals of one stream, the older ones left out."""
        connection = self.connect()
        connection.request("GET", "/v1/watch?" + urlencode([("name", name) for name in names]), None, self.headers)
        response = connection.getresponse()
        assert response.status == 200, response.status
        assert response.headers["Content-Type"] == "text/event-stream"
        event, data = "", ""
        while line := response.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                event = text.removeprefix("event: ")
            elif text.startswith("data: "):
                data = text.removeprefix("data: ")
            elif not text:
                if event in ("update", "error"):
                    entry = self.entry(json.loads(data))
                    if isinstance(entry, Refused) or self.is_new(entry):
                        yield entry
                event, data = "", ""
        connection.close()

    def is_new(self, value: Value) -> bool:
        newest = self.newest.get(value.name)
        if value.resolved_at and newest and value.resolved_at < newest - TOLERANCE:
            return False
        if value.resolved_at:
            self.newest[value.name] = max(value.resolved_at, newest or value.resolved_at)
        return True
