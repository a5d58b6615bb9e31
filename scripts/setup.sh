#!/usr/bin/env bash
# Installs what building and testing need, on a machine with Rust and git. Quick when everything is there.
# Starts no service and stops none: the tests run private instances of what is installed here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

purpose=all
case "${1:-}" in
  "" | --for-lint | --for-up) [ -n "${1:-}" ] && purpose="${1#--for-}" ;;
  *) echo "usage: ./dev setup" >&2; exit 2 ;;
esac

# How to see that a package is there | the Debian package | what needs it
packages=$(
  cat <<'TXT'
cc --version|build-essential|building the bundled libraries|all lint up
curl --version|curl|the tests that use it as a client|all
jq --version|jq|the tests that use it as a client|all
find_postgres|postgresql|the database tests and ./dev up|all up
find_mariadb|mariadb-server|the database tests|all
etcd --version|etcd-server|the benchmarks that compare with it|all
redis-server --version|redis-server|the tests of the config server's Redis provider|all
haproxy -v|haproxy|the tests behind a balancer|all
nginx -v|nginx-light|the tests behind a balancer and the benchmarks that compare with it|all
wrk_found|wrk|the benchmarks of the config server|all
nft --version|nftables|the partition tests|all
ip -V|iproute2|the partition tests|all
find_faketime|libfaketime|the clock tests|all
ps --version|procps|the process tests|all
setpriv --version|util-linux|running databases as their own user|all up
python3 --version|python3|the lints and the client tests|all lint
python3 -c "import venv, ensurepip"|python3-venv|the client tests|all
TXT
)

# Debian keeps daemons in directories that are not in everybody's path.
export PATH="$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin"
find_postgres() { compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }
# Its only way to tell its version exits 1.
wrk_found() { command -v wrk; }
find_mariadb() { command -v mariadbd || command -v mysqld; }
find_faketime() { compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null; }

say() { printf 'setup: %s\n' "$*"; }

missing() {
  local probe package why purposes
  while IFS='|' read -r probe package why purposes; do
    case " $purposes " in *" $purpose "*) ;; *) continue ;; esac
    eval "$probe" >/dev/null 2>&1 </dev/null || printf '%s|%s\n' "$package" "$why"
  done <<<"$packages"
}

give_up() {
  {
    echo "setup: these are missing and could not be installed ($1):"
    while IFS='|' read -r package why; do printf '  %-18s for %s\n' "$package" "$why"; done <<<"$2"
    echo "On Debian or Ubuntu: sudo apt-get install -y $(cut -d'|' -f1 <<<"$2" | tr '\n' ' ')"
    echo "Elsewhere: install the packages that hold the same programs, then run ./dev setup again."
  } >&2
  exit 1
}

# Debian starts a daemon as soon as its package is there, unless this file says no.
policy=/usr/sbin/policy-rc.d
policy_mine=
forbid_starting_services() {
  if [ -e "$policy" ]; then
    "$policy" any start >/dev/null 2>&1 || [ $? -ne 101 ] || return 0
    say "$policy exists and lets services start; set aside while installing"
    mv "$policy" "$policy.holdfast-setup"
  fi
  policy_mine=yes
  trap allow_starting_services EXIT INT TERM
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
}
allow_starting_services() {
  [ -n "$policy_mine" ] || return 0
  policy_mine=
  rm -f "$policy"
  if [ -e "$policy.holdfast-setup" ]; then mv "$policy.holdfast-setup" "$policy"; fi
}

install_packages() {
  local lacking="$1" names
  command -v apt-get >/dev/null || give_up "there is no apt-get here" "$lacking"
  [ "$(id -u)" -eq 0 ] || give_up "this user is not root" "$lacking"
  names=$(cut -d'|' -f1 <<<"$lacking" | sort -u | tr '\n' ' ')
  say "installing $names"
  export DEBIAN_FRONTEND=noninteractive
  forbid_starting_services
  # shellcheck disable=SC2086 # the names are separate words
  if ! apt-get install -y -q --no-install-recommends $names >/tmp/holdfast-setup.$$ 2>&1 </dev/null; then
    say "reading the package lists anew"
    apt-get update -q >>/tmp/holdfast-setup.$$ 2>&1 </dev/null || true
    apt-get install -y -q --no-install-recommends $names >>/tmp/holdfast-setup.$$ 2>&1 </dev/null || {
      tail -n 20 /tmp/holdfast-setup.$$ >&2
      rm -f /tmp/holdfast-setup.$$
      allow_starting_services
      give_up "apt-get failed, see above" "$lacking"
    }
  fi
  rm -f /tmp/holdfast-setup.$$
  allow_starting_services
}

setup_packages() {
  local lacking
  lacking=$(missing)
  [ -n "$lacking" ] || return 0
  install_packages "$lacking"
  lacking=$(missing)
  [ -z "$lacking" ] || give_up "installed, but still not found" "$lacking"
}

# A cargo subcommand, built from source when it is missing.
setup_cargo_tool() {
  local tool="$1" minutes="$2"
  cargo "$tool" --version >/dev/null 2>&1 && return 0
  say "building cargo-$tool, about $minutes minutes, once for this machine"
  # Not in the project's target directory, which it would fill with things of its own.
  CARGO_TARGET_DIR="$(mktemp -d)" && export CARGO_TARGET_DIR
  cargo install --quiet --locked "cargo-$tool" </dev/null || {
    echo "setup: cargo-$tool could not be built; get it by: cargo install --locked cargo-$tool" >&2
    exit 1
  }
  rm -rf "$CARGO_TARGET_DIR"
  unset CARGO_TARGET_DIR
}

setup_venv() {
  local wanted=tests/clients/requirements.txt stamp=.venv/holdfast-requirements.txt
  cmp -s "$wanted" "$stamp" && .venv/bin/python -c 'import hvac' 2>/dev/null && return 0
  say "installing the Python clients into .venv"
  rm -rf .venv
  python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement "$wanted" </dev/null || {
    echo "setup: pip could not install $wanted; see above" >&2
    exit 1
  }
  cp "$wanted" "$stamp"
}

setup_rust() {
  command -v cargo >/dev/null || { echo "setup: Rust is missing; see https://rustup.rs" >&2; exit 1; }
  cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return 0
  say "adding rustfmt and clippy"
  rustup component add rustfmt clippy || { echo "setup: rustfmt and clippy are missing" >&2; exit 1; }
}

setup_rust
setup_packages
if [ "$purpose" != up ]; then setup_cargo_tool deny 3; fi
if [ "$purpose" = all ]; then
  setup_cargo_tool nextest 4
  setup_venv
fi
say "everything is there"
