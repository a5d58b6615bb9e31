"""Opens a new cluster as hvac does: initialises the first node, unseals it, and unseals the others as they join.

usage: open.py ADDRESS...

Prints one line for each thing done, the same for any client; the last one is the root token.
"""

import sys
import time

import hvac
import hvac.exceptions

clients = [hvac.Client(url=address) for address in sys.argv[1:]]


def until(what, condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within a minute")
        time.sleep(0.05)
    print(what)


first = clients[0]
if first.sys.is_initialized():
    sys.exit("it is initialised already")
made = first.sys.initialize(secret_shares=3, secret_threshold=2)
keys, root = made["keys"], made["root_token"]
print(f"init: {len(keys)} shares")
for client in clients:
    until("it knows what it is to open", client.sys.is_initialized)
    if not client.sys.is_sealed():
        sys.exit("it is open already")
    status = client.sys.submit_unseal_key(keys[0])
    print(f"progress: {status['progress']} of {status['t']}")
    status = client.sys.submit_unseal_key(keys[1])
    print(f"sealed: {str(status['sealed']).lower()}")
    # Active or standby: both serve.
    until("it serves", lambda: client.sys.read_health_status(method="HEAD").status_code in (200, 429))
print(root)
