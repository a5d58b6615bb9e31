#!/usr/bin/env bash
# The same table by our own commands alone, through one node. Prints, line for line, what table.py prints of the same
# things, so that the two can be compared; ends with 1 at the first answer that is not the expected one.
# usage: table_cli.sh ADDRESS ROOT_TOKEN POSTGRES_HOST:PORT TAG HOLDFAST
set -euo pipefail

export HOLDFAST_ADDR=$1 HOLDFAST_TOKEN=$2
postgres=$3 tag=$4 holdfast=$5
HOME=$(mktemp -d)
export HOME
trap 'rm -rf "$HOME"' EXIT

# ask COMMAND...: the JSON that the command prints stays in $body.
body=$HOME/body
ask() { "$holdfast" "$@" -json >"$body" || { echo "holdfast $*: ended with $?" >&2; exit 1; }; }

# has WHAT FILTER WANTED [SHOWN]: what jq finds in the last body.
has() {
  local got
  got=$(jq --raw-output --compact-output "$2" "$body")
  [ "$got" = "$3" ] || { echo "$1: got $got, wanted $3: $(cat "$body")" >&2; exit 1; }
  echo "$1: ${4-$3}"
}

# refused WHAT TEXT SHOWN COMMAND...: the server refuses it with this text.
refused() {
  local what=$1 text=$2 shown=$3 code=0
  shift 3
  "$holdfast" "$@" >/dev/null 2>"$HOME/err" || code=$?
  [ "$code" = 2 ] || { echo "$what: ended with $code: $(cat "$HOME/err")" >&2; exit 1; }
  grep --quiet --fixed-strings -- "$text" "$HOME/err" || { echo "$what: $(cat "$HOME/err")" >&2; exit 1; }
  echo "$what: $shown"
}

ask operator init -status
has "initialised" .initialized true True
ask status
has "sealed" .sealed false False
has "storage" .storage_type raft
has "ha" .ha_enabled true True
has "leader is known" '.leader_address | length > 0' true True
ask secrets list
has "mounts" '.data | has("sys/") and has("cubbyhole/")' true True
ask auth list
has "auth mounts" '.data | has("token/")' true True

ask secrets enable "-path=kv2-$tag" -version=2 kv
has_ok() { [ "$(jq --compact-output . "$body")" = '{"ok":true}' ] || { echo "no answer in JSON: $(cat "$body")" >&2; exit 1; }; }
has_ok
ask write "kv2-$tag/config" max_versions=5
has_ok
ask read "kv2-$tag/config"
has "kv config" .data.max_versions 5
ask kv put "kv2-$tag/app/one" user=ann n=1
has "kv version" .data.version 1
ask kv put -cas=1 "kv2-$tag/app/one" user=bob
refused "kv cas text" "did not match the current version" True kv put -cas=1 "kv2-$tag/app/one" user=eve
ask kv get "kv2-$tag/app/one"
has "kv read" .data.data '{"user":"bob"}' "{'user': 'bob'}"
ask kv patch "kv2-$tag/app/one" more=x
ask kv get "kv2-$tag/app/one"
has "kv patch" .data.data '{"more":"x","user":"bob"}' "{'more': 'x', 'user': 'bob'}"
ask kv delete "kv2-$tag/app/one"
has_ok
refused "kv deleted" 404 InvalidPath kv get "kv2-$tag/app/one"
ask kv undelete -versions=3 "kv2-$tag/app/one"
ask kv destroy -versions=1 "kv2-$tag/app/one"
ask kv metadata get "kv2-$tag/app/one"
has "kv current" .data.current_version 3
has "kv destroyed" '.data.versions["1"].destroyed' true True
ask kv list "kv2-$tag/app"
has "kv list" . '["one"]' "['one']"
ask kv metadata delete "kv2-$tag/app/one"
refused "kv gone" 404 InvalidPath kv list "kv2-$tag/app"
ask secrets disable "kv2-$tag"
has_ok

ask secrets enable "-path=db-$tag" database
url="postgresql://{{username}}:{{password}}@$postgres/postgres?sslmode=disable"
ask write "db-$tag/config/pg" plugin_name=postgresql-database-plugin allowed_roles=app "connection_url=$url" \
  username=root_of_db password=root-pw
ask read "db-$tag/config/pg"
has "db config" .data.allowed_roles '["app"]' "['app']"
printf '%s' "CREATE ROLE \"{{name}}\" LOGIN PASSWORD '{{password}}' VALID UNTIL '{{expiration}}'" >"$HOME/create.sql"
ask write "db-$tag/roles/app" db_name=pg "creation_statements=@$HOME/create.sql" default_ttl=1h max_ttl=24h
ask read "db-$tag/roles/app"
has "db role" .data.default_ttl 3600
ask read "db-$tag/creds/app"
has "creds" '[.renewable, .lease_duration, (.data | keys)]' '[true,3600,["password","username"]]' \
  "(True, 3600, ['password', 'username'])"
has "lease path" ".lease_id | startswith(\"db-$tag/creds/app/\")" true True
lease=$(jq --raw-output .lease_id "$body")
ask lease lookup "$lease"
has "lease lookup" ".data.id == \"$lease\"" true True
ask lease renew -increment=7200 "$lease"
has "lease renewed" .lease_duration 7200
ask lease revoke -sync "$lease"
has_ok
refused "lease is gone" "invalid lease" yes lease lookup "$lease" >/dev/null
ask secrets disable "db-$tag"
refused "mount gone" 404 None read "db-$tag/config/pg"
echo "table done"
