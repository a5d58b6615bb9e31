# Named steps with their time; sourced by ./dev. A step that fails ends the script with its output shown.

STEP_TIMES=()

step() {
  local name="$1" from="$SECONDS" status=0
  shift
  printf '== %s\n' "$name"
  "$@" </dev/null || status=$?
  STEP_TIMES+=("$(printf '%5ds  %s' "$((SECONDS - from))" "$name")")
  if [ "$status" -ne 0 ]; then
    printf '\n%s FAILED with code %s\n  to repeat it: %s\n' "$name" "$status" "$*" >&2
    steps_summary >&2
    exit "$status"
  fi
}

steps_summary() {
  printf '\n== time of each step\n'
  printf '%s\n' "${STEP_TIMES[@]}"
  printf '\n'
}
