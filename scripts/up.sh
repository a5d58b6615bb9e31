#!/usr/bin/env bash
# Runs a private PostgreSQL and the platform beside it, on loopback, until Ctrl-C. Nothing is left behind.
# usage: scripts/up.sh PATH_TO_HOLDFAST [--nodes N] [--spokes N] [--port N] [--root-token ID]
#        scripts/up.sh PATH_TO_HOLDFAST --demo [ARGS of holdfast demo failover]
set -euo pipefail

holdfast="$1"
shift
nodes=3
spokes=1
token=root
port=8200
demo=
if [ "${1:-}" = --demo ]; then
  demo=1
  shift
fi
usage() {
  echo "usage: ./dev up [--nodes N] [--spokes N] [--port N] [--root-token ID]" >&2
  exit "$1"
}
value() { # the value of the flag $1, which is there
  [ $# -gt 1 ] && [ -n "$2" ] || { echo "up: $1 needs a value" >&2; usage 2; }
  printf '%s' "$2"
}
while [ -z "$demo" ] && [ $# -gt 0 ]; do
  case "$1" in
    --nodes | --spokes | --port | --root-token) given=$(value "$@") || exit; set -- "$1=$given" "${@:3}" ;;
    --nodes=*) nodes="${1#*=}"; shift ;;
    --spokes=*) spokes="${1#*=}"; shift ;;
    --port=*) port="${1#*=}"; shift ;;
    --root-token=*) token="${1#*=}"; shift ;;
    -h | --help) usage 0 ;;
    *) echo "up: unknown argument: $1" >&2; usage 2 ;;
  esac
done

if [ -n "$demo" ]; then
  command=(demo failover "$@")
else
  command=(dev --nodes "$nodes" --spokes "$spokes" --port "$port" --root-token "$token")
fi
# The program knows best what it takes: asked for help behind everything else, it looks at that first.
for argument in "$@"; do
  case "$argument" in -h | --help | -help) exec "$holdfast" demo failover --help ;; esac
done
"$holdfast" "${command[@]}" --help >/dev/null || exit

bin=$(find /usr/lib/postgresql -maxdepth 3 -name initdb -printf '%h\n' 2>/dev/null | sort -V | tail -n 1)
[ -n "$bin" ] || { echo "up: PostgreSQL is not installed; run ./dev setup" >&2; exit 1; }

dir=$(mktemp -d /tmp/holdfast-up.XXXXXX)
postgres_pid= platform_pid=
finish() {
  trap - EXIT INT TERM
  # A lost terminal may tell it twice.
  trap '' HUP
  [ -z "$platform_pid" ] || { kill -TERM "$platform_pid" 2>/dev/null && wait "$platform_pid"; } || true
  # SIGINT is PostgreSQL's fast end: sessions are cut, files are left whole.
  [ -z "$postgres_pid" ] || { kill -INT "$postgres_pid" 2>/dev/null && wait "$postgres_pid"; } || true
  rm -rf "$dir"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# PostgreSQL refuses to run as root.
as=() identity=()
if [ "$(id -u)" -eq 0 ]; then
  chown postgres "$dir"
  identity=(--reuid=postgres --regid=postgres --init-groups --)
  as=(setpriv "${identity[@]}")
fi

free_port() { # one that the system just gave and took back; PostgreSQL says so if it was lost in between
  local port
  for _ in $(seq 100); do
    port=$((20000 + RANDOM % 12000))
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
  done
  echo "up: no free port" >&2
  return 1
}

# What the platform prints is the output; how PostgreSQL comes up is not, when somebody reads the demo's JSON.
say() { if [ -n "$demo" ]; then echo "$@" >&2; else echo "$@"; fi; }

say "[1/3] PostgreSQL: making a private cluster in $dir"
password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
(umask 077; printf '%s\n' "$password" >"$dir/password")
[ "$(id -u)" -ne 0 ] || chown postgres "$dir/password"
cd "$dir"
"${as[@]}" "$bin/initdb" --pgdata="$dir/data" --username=holdfast --pwfile="$dir/password" \
  --auth=scram-sha-256 --encoding=UTF8 --locale=C --no-sync >"$dir/initdb.log" 2>&1 ||
  { cat "$dir/initdb.log" >&2; exit 1; }
rm -f "$dir/password"

database_port=$(free_port)
# In a session of its own: Ctrl-C is for the platform first, which still needs its database to clean up.
# If this script is killed the hard way, both end with it.
setsid setpriv --pdeathsig=QUIT "${identity[@]}" "$bin/postgres" -D "$dir/data" -p "$database_port" -c listen_addresses=127.0.0.1 \
  -c unix_socket_directories="$dir" -c fsync=off >"$dir/postgres.log" 2>&1 &
postgres_pid=$!
for attempt in $(seq 150); do
  "$bin/pg_isready" -q -h 127.0.0.1 -p "$database_port" && break
  kill -0 "$postgres_pid" 2>/dev/null || { cat "$dir/postgres.log" >&2; exit 1; }
  [ "$attempt" -lt 150 ] || { echo "up: PostgreSQL did not start within 30 s" >&2; exit 1; }
  sleep 0.2
done
say "[2/3] PostgreSQL: ready on 127.0.0.1:$database_port"

if [ -z "$demo" ]; then
  say "[3/3] Holdfast: $nodes hub node(s) and $spokes spoke(s) on loopback; Ctrl-C ends everything and removes it"
fi
# By the environment, so that the password is in nobody's list of processes.
HOLDFAST_DEV_POSTGRES="postgresql://holdfast:$password@127.0.0.1:$database_port/postgres" \
  "$holdfast" "${command[@]}" --end-with-parent "$$" &
platform_pid=$!
wait "$platform_pid"
