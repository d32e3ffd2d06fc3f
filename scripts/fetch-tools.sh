#!/bin/sh
# fetch-tools.sh SUITE: unpacks Debian SUITE's Prometheus, Alertmanager, promtool and amtool under .cache/debian/SUITE.
# Nothing is installed and nothing is started. A private package list serves any SUITE on any Debian, as any user.
set -eu
suite=$1
home=$PWD/.cache/debian/$suite
work=$home/apt
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# Where the .deb files lie is the machine's own setting; only the suite is ours.
mirror() { apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)' 'Created-By: Packages' | sed -n 's/|Debian|Debian$//p' | head -n 1; }

fail() {
    mkdir -p "$home"
    echo "$*" >"$home/unavailable"
    if [ -e "$work/log" ]; then grep -m 3 '^[EW]:' "$work/log" >&2 || true; fi
    echo "make: Debian $suite's Prometheus: $*" >&2
    exit 1
}

for tool in apt-get dpkg; do
    command -v $tool >/dev/null || fail "$tool not found; the tools are fetched on Debian only"
done
[ -r "$keyring" ] || fail "$keyring is missing; apt-get install debian-archive-keyring"

rm -rf "$home"
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/debs" "$home/root"
mirror=$(mirror)
if [ -z "$mirror" ] && [ "$(id -u)" = 0 ]; then
    # A machine that has never fetched its package lists does not know which of its sources is Debian's own.
    apt-get -o DPkg::Lock::Timeout=300 update >"$work/log" 2>&1 || true
    mirror=$(mirror)
fi
[ -n "$mirror" ] || fail "apt-get knows no Debian mirror; run apt-get update as root"
echo "deb [signed-by=$keyring] $mirror $suite main" >"$work/sources.list"

# Signatures are checked as ever; a mirror that lags behind the calendar will do.
apt() {
    apt-get -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work" -o APT::Sandbox::User="" -o Acquire::Languages=none \
        -o Acquire::Check-Valid-Until=false -o Acquire::Retries=1 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 "$@"
}
echo "make: fetching Debian $suite's Prometheus and Alertmanager" >&2
apt update >"$work/log" 2>&1 || fail "the package list could not be fetched"
cd "$work/debs"
apt download prometheus prometheus-alertmanager >>"$work/log" 2>&1 || fail "the packages could not be downloaded"
# Newer releases split promtool off; in bookworm it is in prometheus itself, and this finds nothing.
apt download promtool >>"$work/log" 2>&1 || true
for deb in "$work"/debs/*.deb; do
    dpkg -x "$deb" "$home/root" || fail "$(basename "$deb") could not be unpacked"
done
# Debian's Alertmanager reads its templates from an absolute path. The same number of characters that mean "here" let
# it run from where it was unpacked: it is to be started in usr/share/prometheus/alertmanager.
installed=/usr/share/prometheus/alertmanager
here=./././././././././././././././././
[ ${#here} = ${#installed} ] || fail "the two template paths differ in length"
LC_ALL=C sed -i "s#$installed#$here#g" "$home/root/usr/bin/prometheus-alertmanager"
for tool in prometheus promtool prometheus-alertmanager amtool; do
    "$home/root/usr/bin/$tool" --version >>"$work/log" 2>&1 || fail "$tool does not run on this machine"
done
rm -rf "$work"
touch "$home/fetched"
