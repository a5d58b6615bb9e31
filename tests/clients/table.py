"""The whole table of a client written for Vault, through one node: kv, tokens, policies, login methods, wrapping,
database logins, leases.

usage: table.py ADDRESS ROOT_TOKEN POSTGRES_HOST:PORT TAG

Prints one line for each thing done, so that runs through different nodes can be compared; ends with 1 at the first
answer that is not what such a client expects.
"""

import sys

import hvac
import hvac.exceptions

address, root, postgres, tag = sys.argv[1:5]
client = hvac.Client(url=address, token=root)


def say(what, value):
    print(f"{what}: {value}")


def expect(what, value, wanted):
    if value != wanted:
        sys.exit(f"{what}: got {value!r}, wanted {wanted!r}")
    say(what, value)


def refused(what, error, call):
    try:
        call()
    except error as refusal:
        say(what, type(refusal).__name__)
        return str(refusal)
    sys.exit(f"{what}: was not refused")


def system():
    expect("initialised", client.sys.is_initialized(), True)
    expect("sealed", client.sys.is_sealed(), False)
    expect("authenticated", client.is_authenticated(), True)
    leader = client.sys.read_leader_status()
    expect("ha", leader["ha_enabled"], True)
    expect("leader is known", bool(leader["leader_address"]), True)
    health = client.sys.read_health_status(method="GET")
    status = health.status_code if hasattr(health, "status_code") else 200
    expect("health", status in (200, 429), True)
    seal = client.sys.read_seal_status()
    expect("storage", seal["storage_type"], "raft")
    mounts = client.sys.list_mounted_secrets_engines()["data"]
    expect("mounts", {"sys/", "cubbyhole/"} <= set(mounts), True)
    expect("auth mounts", "token/" in client.sys.list_auth_methods()["data"], True)


def kv_versions():
    mount = f"kv2-{tag}"
    client.sys.enable_secrets_engine("kv", path=mount, options={"version": "2"})
    kv = client.secrets.kv.v2
    kv.configure(max_versions=5, mount_point=mount)
    expect("kv config", kv.read_configuration(mount_point=mount)["data"]["max_versions"], 5)
    first = kv.create_or_update_secret("app/one", {"user": "ann", "n": 1}, mount_point=mount)
    expect("kv version", first["data"]["version"], 1)
    kv.create_or_update_secret("app/one", {"user": "bob"}, cas=1, mount_point=mount)
    text = refused(
        "kv cas", hvac.exceptions.InvalidRequest,
        lambda: kv.create_or_update_secret("app/one", {"user": "eve"}, cas=1, mount_point=mount),
    )
    expect("kv cas text", "did not match the current version" in text, True)
    read = kv.read_secret_version("app/one", mount_point=mount, raise_on_deleted_version=True)
    expect("kv read", read["data"]["data"], {"user": "bob"})
    old = kv.read_secret_version("app/one", version=1, mount_point=mount, raise_on_deleted_version=True)
    expect("kv old version", old["data"]["data"], {"user": "ann", "n": 1})
    kv.patch("app/one", {"more": "x"}, mount_point=mount)
    read = kv.read_secret_version("app/one", mount_point=mount, raise_on_deleted_version=True)
    expect("kv patch", read["data"]["data"], {"user": "bob", "more": "x"})
    kv.delete_latest_version_of_secret("app/one", mount_point=mount)
    refused(
        "kv deleted", hvac.exceptions.InvalidPath,
        lambda: kv.read_secret_version("app/one", mount_point=mount, raise_on_deleted_version=True),
    )
    kv.undelete_secret_versions("app/one", [3], mount_point=mount)
    kv.destroy_secret_versions("app/one", [1], mount_point=mount)
    meta = kv.read_secret_metadata("app/one", mount_point=mount)["data"]
    expect("kv current", meta["current_version"], 3)
    expect("kv destroyed", meta["versions"]["1"]["destroyed"], True)
    kv.update_metadata("app/one", custom_metadata={"team": "a"}, mount_point=mount)
    meta = kv.read_secret_metadata("app/one", mount_point=mount)["data"]
    expect("kv custom metadata", meta["custom_metadata"], {"team": "a"})
    expect("kv list", kv.list_secrets("app", mount_point=mount)["data"]["keys"], ["one"])
    kv.delete_metadata_and_all_versions("app/one", mount_point=mount)
    refused("kv gone", hvac.exceptions.InvalidPath, lambda: kv.list_secrets("app", mount_point=mount))
    client.sys.disable_secrets_engine(mount)


def kv_plain():
    mount = f"kv1-{tag}"
    client.sys.enable_secrets_engine("kv", path=mount, options={"version": "1"})
    kv = client.secrets.kv.v1
    kv.create_or_update_secret("a/b", {"x": "1"}, mount_point=mount)
    expect("kv1 read", kv.read_secret("a/b", mount_point=mount)["data"], {"x": "1"})
    expect("kv1 list", kv.list_secrets("a", mount_point=mount)["data"]["keys"], ["b"])
    kv.delete_secret("a/b", mount_point=mount)
    refused("kv1 gone", hvac.exceptions.InvalidPath, lambda: kv.read_secret("a/b", mount_point=mount))
    client.sys.disable_secrets_engine(mount)


def policies_and_tokens():
    name = f"app-{tag}"
    client.sys.create_or_update_policy(name, f'path "secret-{tag}/*" {{ capabilities = ["read"] }}')
    expect("policy listed", name in client.sys.list_policies()["data"]["policies"], True)
    made = client.auth.token.create(policies=[name], ttl="1h", meta={"team": "a"})["auth"]
    expect("token policies", sorted(made["policies"]), sorted(["default", name]))
    found = client.auth.token.lookup(made["client_token"])["data"]
    expect("token meta", found["meta"], {"team": "a"})
    expect("token ttl", 3500 < found["ttl"] <= 3600, True)
    other = hvac.Client(url=address, token=made["client_token"])
    expect("own lookup", other.auth.token.lookup_self()["data"]["accessor"] == made["accessor"], True)
    refused("policy holds", hvac.exceptions.Forbidden, lambda: other.sys.list_policies())
    expect("capabilities", other.sys.get_capabilities([f"secret-{tag}/x"])["data"][f"secret-{tag}/x"], ["read"])
    renewed = other.auth.token.renew_self(increment="2h")["auth"]
    expect("renewed", renewed["lease_duration"] > 3600, True)
    expect("by accessor", client.auth.token.lookup_accessor(made["accessor"])["data"]["display_name"], "token-token")
    client.auth.token.revoke(made["client_token"])
    refused("revoked", hvac.exceptions.Forbidden, lambda: other.auth.token.lookup_self())
    client.sys.delete_policy(name)


def login_methods():
    role_path, user_path = f"approle-{tag}", f"userpass-{tag}"
    client.sys.enable_auth_method("approle", path=role_path)
    role = client.auth.approle
    role.create_or_update_approle("app", token_policies=["default"], token_ttl="10m", mount_point=role_path)
    role_id = role.read_role_id("app", mount_point=role_path)["data"]["role_id"]
    secret = role.generate_secret_id("app", mount_point=role_path)["data"]
    login = role.login(role_id, secret["secret_id"], use_token=False, mount_point=role_path)["auth"]
    expect("approle login", (login["lease_duration"], login["policies"]), (600, ["default"]))
    role.destroy_secret_id("app", secret["secret_id"], mount_point=role_path)
    text = refused(
        "approle destroyed", hvac.exceptions.InvalidRequest,
        lambda: role.login(role_id, secret["secret_id"], use_token=False, mount_point=role_path),
    )
    expect("approle text", "invalid role or secret ID" in text, True)
    client.sys.disable_auth_method(role_path)

    client.sys.enable_auth_method("userpass", path=user_path)
    users = client.auth.userpass
    users.create_or_update_user("ann", "correct horse", mount_point=user_path)
    login = users.login("ann", "correct horse", use_token=False, mount_point=user_path)["auth"]
    expect("userpass login", login["metadata"], {"username": "ann"})
    text = refused(
        "userpass wrong", hvac.exceptions.InvalidRequest,
        lambda: users.login("ann", "wrong", use_token=False, mount_point=user_path),
    )
    expect("userpass text", "invalid username or password" in text, True)
    client.sys.disable_auth_method(user_path)


def wrapping():
    wrapped = client.sys.wrap({"zip": "zap"}, ttl=60)
    token = wrapped["wrap_info"]["token"]
    expect("unwrap", client.sys.unwrap(token)["data"], {"zip": "zap"})
    text = refused("unwrap twice", hvac.exceptions.InvalidRequest, lambda: client.sys.unwrap(token))
    expect("unwrap text", "wrapping token is not valid or does not exist" in text, True)


def database():
    mount = f"db-{tag}"
    client.sys.enable_secrets_engine("database", path=mount)
    db = client.secrets.database
    db.configure(
        "pg", "postgresql-database-plugin", allowed_roles=["app"], mount_point=mount,
        connection_url=f"postgresql://{{{{username}}}}:{{{{password}}}}@{postgres}/postgres?sslmode=disable",
        username="root_of_db", password="root-pw",
    )
    expect("db config", db.read_connection("pg", mount_point=mount)["data"]["allowed_roles"], ["app"])
    create = ["CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'"]
    db.create_role("app", "pg", create, default_ttl="1h", max_ttl="24h", mount_point=mount)
    expect("db role", db.read_role("app", mount_point=mount)["data"]["default_ttl"], 3600)
    made = db.generate_credentials("app", mount_point=mount)
    expect("creds", (made["renewable"], made["lease_duration"], sorted(made["data"])), (True, 3600, ["password", "username"]))
    lease = made["lease_id"]
    expect("lease path", lease.startswith(f"{mount}/creds/app/"), True)
    expect("lease lookup", client.sys.read_lease(lease)["data"]["id"] == lease, True)
    renewed = client.sys.renew_lease(lease, increment=7200)
    expect("lease renewed", renewed["lease_duration"], 7200)
    client.sys.revoke_lease(lease)
    client.sys.disable_secrets_engine(mount)
    expect("mount gone", client.read(f"{mount}/config/pg"), None)


for part in (system, kv_versions, kv_plain, policies_and_tokens, login_methods, wrapping, database):
    part()
print("table done")
