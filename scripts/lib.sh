# Functions that the scripts share; sourced, never run. A function announces what it installs.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools_dir="${XDG_CACHE_HOME:-$HOME/.cache}/tidemark/tools"

say() { printf '== %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

may_apt() { [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; }

# apt_install WHY PACKAGE...: installs with apt as root; otherwise stops and prints the command to run.
apt_install() {
  local why=$1
  shift
  may_apt || die "$why; get it with: sudo apt-get update && sudo apt-get install -y $*"
  say "$why: installing $* with apt"
  local log
  log=$(mktemp)
  if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } \
    > "$log" 2>&1 < /dev/null; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    die "apt could not install $*"
  fi
  rm -f "$log"
}

# java_version COMMAND: prints the major version, or nothing if it does not run.
java_version() {
  "$1" -version 2>&1 < /dev/null | sed -n '1s/.*version "\([0-9]*\).*/\1/p' || true
}

# find_java: exports JAVA_HOME for a Java of at least 17, or fails without a message.
find_java() {
  local java version
  for java in "${JAVA_HOME:-/nonexistent}/bin/java" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
    [ -x "$java" ] || continue
    version=$(java_version "$java")
    if [ "${version:-0}" -ge 17 ]; then
      JAVA_HOME=$(dirname "$(dirname "$(readlink -f "$java")")")
      export JAVA_HOME
      return 0
    fi
  done
  return 1
}
