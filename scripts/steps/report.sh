# shellcheck shell=bash
# Sourced by every script of the set-up: strict mode, where things live, and how a script gives up.
# shellcheck disable=SC2034 # `root` and `cache` are for the scripts that source this file

set -euo pipefail
umask 022
export LC_ALL=C.UTF-8

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${UNDERPIN_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set, so there is no place for the cache}/.cache}/underpin}
[[ $cache == /* ]] || cache=$PWD/$cache
PATH=$PATH:/usr/sbin:/sbin

# fail SENTENCE: says what failed, why and what to do, and ends the script.
fail() {
    printf 'underpin: %s\n' "$*" >&2
    exit 1
}

# as_root COMMAND...: runs it as root, through sudo without a question.
as_root() {
    if ((EUID == 0)); then
        "$@"
    elif sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        fail "cannot become root to run '${1##*/}', because sudo is missing or wants a password; run 'sudo -v' and then the same command again"
    fi
}

# need_space DIRECTORY MIB WHAT: refuses early when the file system is too full for WHAT.
need_space() {
    local free
    free=$(df --output=avail --block-size=1M "$1" | tail -n 1)
    ((free >= $2)) ||
        fail "$3 needs $2 MiB in $1, which has ${free// /} MiB free; free some space or set UNDERPIN_CACHE to another directory"
}

# publish TEMPORARY PRODUCT: puts a finished product into its place, so that a product is whole or absent.
publish() {
    rm -rf "$2"
    mv -T "$1" "$2"
}
