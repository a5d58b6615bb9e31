"""Everything that a v1 client does, against one config server.

usage: suite.py ENDPOINT TOKEN FILE [CA]     FILE is what the binding `watched` reads; the suite changes it
"""

import sys

from client import Client, Refused, Value


def check(what: str, holds: bool) -> None:
    assert holds, what
    print(f"ok: {what}")


def refused(kind: str, status: int, call) -> bool:
    try:
        call()
    except Refused as refusal:
        return (refusal.kind, refusal.status) == (kind, status)
    return False


def main(endpoint: str, token: str, file: str, ca: str | None = None) -> None:
    client = Client(endpoint, token, ca)
    check("the server is alive", client.health() == "ok")
    value = client.get("text")
    check("a value has its bytes and a date", value.data == b"hello" and value.resolved_at is not None)
    check("a healthy value is not stale and has no kind", not value.stale and value.kind is None)
    check("a name with a slash is one segment", client.get("orders/db").data == b"nested")
    check("an empty value is a value", client.get("empty").data == b"")
    check("a secret is marked", client.get("secret").sensitive)
    check("a name that is not bound", refused("not_found", 404, lambda: client.get("nothing")))
    check("a name that is not allowed", refused("permission_denied", 403, lambda: client.get("hidden")))
    wrong = Client(endpoint, "wrong", ca)
    check("a wrong token", refused("unauthenticated", 401, lambda: wrong.get("text")))
    check("a malformed body", refused("invalid", 400, lambda: client.call("POST", "/v1/values", {"names": "text"})))
    values = client.get_many(["text", "nothing", "hidden", "text"])
    kinds = [value.kind if isinstance(value, Refused) else value.data for value in values]
    check("a batch keeps its order", kinds == [b"hello", "not_found", "permission_denied", b"hello"])
    check("an empty batch", client.get_many([]) == [])
    stream = client.watch("watched", "nothing", "hidden")
    baseline = [next(stream) for _ in range(3)]
    check("a stream begins with what is there", isinstance(baseline[0], Value) and baseline[0].data == b"before")
    check("and with errors for the others", [entry.kind for entry in baseline[1:]] == ["not_found", "permission_denied"])
    with open(file, "w", encoding="utf-8") as target:
        target.write("after")
    changed = next(entry for entry in stream if isinstance(entry, Value) and entry.data != b"before")
    check("a change is delivered", changed.data == b"after" and changed.resolved_at >= baseline[0].resolved_at)
    print("all passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
