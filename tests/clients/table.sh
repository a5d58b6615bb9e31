#!/usr/bin/env bash
# The same table with curl and jq, through one node. Prints one line for each thing done; ends with 1 at the first
# answer that is not the expected one.
# usage: table.sh ADDRESS ROOT_TOKEN POSTGRES_HOST:PORT TAG
set -euo pipefail

address=$1 token=$2 postgres=$3 tag=$4
body=$(mktemp)
trap 'rm -f "$body"' EXIT

# call WHAT STATUS METHOD PATH [JSON]: the body stays in $body.
call() {
  local what=$1 wanted=$2 method=$3 path=$4 data=${5-} got
  # The token goes by standard input: arguments are for everybody to see.
  got=$(printf 'header = "X-Vault-Token: %s"\n' "$token" |
    curl --silent --show-error --max-time 60 --config - --request "$method" ${data:+--data "$data"} \
      --output "$body" --write-out '%{http_code}' "$address/v1/$path")
  [ "$got" = "$wanted" ] || { echo "$what: status $got, wanted $wanted: $(cat "$body")" >&2; exit 1; }
  echo "$what: $got"
}

# has WHAT FILTER WANTED: what jq finds in the last body.
has() {
  local got
  got=$(jq --raw-output --compact-output "$2" "$body")
  [ "$got" = "$3" ] || { echo "$1: got $got, wanted $3" >&2; exit 1; }
  echo "$1: $got"
}

call "init" 200 GET sys/init
has "initialised" .initialized true
call "second init" 400 PUT sys/init '{"secret_shares":1,"secret_threshold":1}'
has "second init text" '.errors[0]' "Vault is already initialized"
call "seal status" 200 GET sys/seal-status
has "sealed" .sealed false
call "health" 200 GET 'sys/health?standbyok=true'
call "leader" 200 GET sys/leader
has "ha" .ha_enabled true

call "mount kv" 204 POST "sys/mounts/kv-$tag" '{"type":"kv","options":{"version":"2"}}'
call "kv write" 200 POST "kv-$tag/data/a/b" '{"data":{"user":"ann"},"options":{"cas":0}}'
has "kv version" .data.version 1
call "kv stale cas" 400 POST "kv-$tag/data/a/b" '{"data":{},"options":{"cas":0}}'
call "kv read" 200 GET "kv-$tag/data/a/b"
has "kv data" .data.data '{"user":"ann"}'
call "kv list" 200 LIST "kv-$tag/metadata/a"
has "kv keys" .data.keys '["b"]'
call "kv delete" 204 DELETE "kv-$tag/metadata/a/b"
call "kv missing" 404 GET "kv-$tag/data/a/b"
has "kv missing body" . '{"errors":[]}'
call "unmount kv" 204 DELETE "sys/mounts/kv-$tag"

call "mount database" 204 POST "sys/mounts/dbc-$tag" '{"type":"database"}'
url="postgresql://{{username}}:{{password}}@$postgres/postgres?sslmode=disable"
call "db config" 204 POST "dbc-$tag/config/pg" "$(jq --null-input --arg url "$url" '{plugin_name:
  "postgresql-database-plugin", connection_url: $url, allowed_roles: "*", username: "root_of_db", password: "root-pw"}')"
create="CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'"
call "db role" 204 POST "dbc-$tag/roles/app" "$(jq --null-input --arg sql "$create" '{db_name: "pg",
  creation_statements: $sql, default_ttl: "1h", max_ttl: "24h"}')"
call "creds" 200 GET "dbc-$tag/creds/app"
has "creds lease" '[.renewable, .lease_duration]' '[true,3600]'
lease=$(jq --raw-output .lease_id "$body")
login=$(jq --raw-output '"\(.data.username) \(.data.password)"' "$body")
answer=$(PGPASSWORD=${login#* } psql --no-psqlrc --quiet --tuples-only --no-align \
  "host=${postgres%:*} port=${postgres#*:} dbname=postgres user=${login% *}" --command 'SELECT 40 + 2')
[ "$answer" = 42 ] || { echo "psql: got $answer" >&2; exit 1; }
echo "psql: $answer"
call "renew" 200 PUT sys/leases/renew "$(jq --null-input --arg id "$lease" '{lease_id: $id, increment: "2h"}')"
has "renewed" .lease_duration 7200
call "revoke" 204 PUT sys/leases/revoke "$(jq --null-input --arg id "$lease" '{lease_id: $id, sync: true}')"
if PGPASSWORD=${login#* } psql --no-psqlrc --quiet "host=${postgres%:*} port=${postgres#*:} dbname=postgres \
  user=${login% *}" --command 'SELECT 1' >/dev/null 2>&1; then
  echo "the revoked login still works" >&2
  exit 1
fi
echo "psql refused: yes"
call "lease is gone" 400 PUT sys/leases/lookup "$(jq --null-input --arg id "$lease" '{lease_id: $id}')"
has "lease is gone text" '.errors[0]' "invalid lease"
call "unmount database" 204 DELETE "sys/mounts/dbc-$tag"
echo "table done"
