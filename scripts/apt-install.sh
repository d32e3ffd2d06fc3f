#!/bin/sh
# apt-install.sh PACKAGE...: installs Debian packages as root, refreshing the package lists only where that is needed.
set -eu

fail() { echo "make: $*" >&2; exit 1; }

command -v apt-get >/dev/null || fail "needs the packages $*, and there is no apt-get here; install them by hand"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@" >"$log" 2>&1 </dev/null
}
echo "make: installing $* with apt-get" >&2
install "$@" && exit 0
# Lists that are missing or out of date are the usual reason.
apt-get -o DPkg::Lock::Timeout=300 update >>"$log" 2>&1 && install "$@" && exit 0
tail -n 5 "$log" >&2
fail "apt-get could not install $*; the lines above say why"
