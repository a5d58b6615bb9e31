#!/usr/bin/env bash
# Opens a new cluster by curl and jq: line for line what open.py prints of the same things.
# usage: open.sh ADDRESS...
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# ask METHOD URL: JSON for the body on standard input, since shares are for nobody to see; the answer stays in body.
ask() { curl --silent --show-error --fail --max-time 60 --request "$1" --data @- --output "$dir/body" "$2"; }

# until_true WHAT COMMAND...: says WHAT once the command succeeds.
until_true() {
  local what=$1 deadline=$((SECONDS + 60))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$deadline" ] || { echo "$what: not within a minute" >&2; exit 1; }
    sleep 0.05
  done
  echo "$what"
}

initialised() { curl --silent --max-time 60 "$1/v1/sys/init" | jq --exit-status .initialized >/dev/null; }
serves() { curl --silent --fail --max-time 60 --output /dev/null "$1/v1/sys/health?standbyok=true"; }

! initialised "$1" || { echo "it is initialised already" >&2; exit 1; }
echo '{"secret_shares":3,"secret_threshold":2}' | ask PUT "$1/v1/sys/init"
mv "$dir/body" "$dir/made"
echo "init: $(jq '.keys | length' "$dir/made") shares"
for address in "$@"; do
  until_true "it knows what it is to open" initialised "$address"
  jq '{key: .keys[0]}' "$dir/made" | ask PUT "$address/v1/sys/unseal"
  echo "progress: $(jq --raw-output '"\(.progress) of \(.t)"' "$dir/body")"
  jq '{key: .keys[1]}' "$dir/made" | ask PUT "$address/v1/sys/unseal"
  echo "sealed: $(jq .sealed "$dir/body")"
  until_true "it serves" serves "$address"
done
jq --raw-output .root_token "$dir/made"
