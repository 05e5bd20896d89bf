# shellcheck shell=bash
# Sourced: a private apt, which knows other suites and architectures than the machine's own apt.
#
# It takes the mirrors from the machine's own sources, checks signatures with Debian's keyring,
# keeps its lists and archives in the cache and leaves the machine's configuration alone.

# shellcheck disable=SC2154 # report.sh sets `cache`
# shellcheck disable=SC2034 # `complaint` and `apt_options` are for the scripts that source this file
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# mirror PATTERN: prints the first configured repository address whose suite matches the pattern.
mirror() {
    # shellcheck disable=SC2016 # apt-get expands these
    apt-get indextargets --no-release-info --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v suite="^($1)\$" '$1 ~ suite && $2 == "main" { print $3; exit }'
}

# stanza KIND ADDRESS SUITES...: prints one entry of a sources file.
stanza() {
    printf 'Types: %s\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' "$1" "$2" "${*:3}" "$keyring"
}

# release_names: prints the names under which the machine's own release may stand in its sources.
release_names() {
    # shellcheck disable=SC1091 # a file of the machine
    . /etc/os-release
    printf '%s|stable|oldstable' "$VERSION_CODENAME"
}

# private_sources SUITE KIND: prints the sources of one suite, with its security updates if the machine has such a mirror.
private_sources() {
    local suite=$1 kind=$2 names main security
    names=$(release_names)
    main=$(mirror "$names")
    [[ -n $main ]] ||
        fail "cannot tell which Debian mirror this machine uses, because apt's sources name no suite '${names//|/\' or \'}'; add one to /etc/apt/sources.list.d"
    [[ -e $keyring ]] || fail "cannot check signatures, because $keyring is missing; install debian-archive-keyring"
    stanza "$kind" "$main" "$suite"
    security=$(mirror "($names)-security")
    # Only stable releases have security updates; not sid, and not a release's own -updates and -backports.
    if [[ -n $security && $suite != sid && $suite != *-* ]]; then
        stanza "$kind" "$security" "$suite-security"
    fi
}

# private_options STATE ARCHITECTURE: sets the array apt_options for the private apt in the directory STATE.
private_options() {
    local state=$1
    mkdir -p "$state/lists/partial" "$state/archives/partial" "$state/none"
    apt_options=(
        -q -o "Dir::State::lists=$state/lists" -o "Dir::Cache=$state" -o "Dir::Cache::archives=$state/archives"
        -o "Dir::Etc::SourceList=$state/debian.sources" -o "Dir::Etc::SourceParts=$state/none"
        -o "Dir::Etc::Preferences=$state/none/preferences" -o "Dir::Etc::PreferencesParts=$state/none"
        -o "APT::Architecture=$2" -o APT::Sandbox::User=root -o Acquire::Retries=3 -o Acquire::Languages=none
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
    )
}

# run_apt COMMAND...: runs an apt command and on failure leaves its first complaint in `complaint`.
run_apt() {
    local output
    output=$(mktemp)
    if "$@" 2>&1 | tee "$output"; then
        rm "$output"
    else
        complaint=$(grep '^E: ' "$output" | head -n 1 | cut -c 4- || true)
        rm "$output"
        return 1
    fi
}

# update_private: reads the package lists of the sources anew.
update_private() {
    run_apt apt-get "${apt_options[@]}" update --error-on=any ||
        fail "cannot read Debian's package lists, because apt says '$complaint'; check the network and run the same command again"
}

# open_private SUITE ARCHITECTURE KIND: an up-to-date private apt of one suite without installed packages,
# for binary packages (KIND deb) or for sources (deb-src).
open_private() {
    local state=$cache/apt/$1-$2-$3
    private_options "$state" "$2"
    : >"$state/status"
    apt_options+=(-o "Dir::State::status=$state/status" -o "APT::Architectures::=$2")
    private_sources "$1" "$3" >"$state/debian.sources"
    update_private
}

# depends PACKAGE REGEX: prints the packages that a package needs and whose names match.
depends() {
    apt-cache "${apt_options[@]}" depends --important "$1" |
        awk -v wanted="^($2)" '$1 == "Depends:" && $2 ~ wanted { print $2 }'
}

# fetch_package PACKAGE DIRECTORY: downloads the newest version of a package into the directory.
fetch_package() {
    run_apt env --chdir="$2" apt-get "${apt_options[@]}" download "$1" ||
        fail "cannot download Debian's package '$1', because apt says '$complaint'; check network and space and run the same command again"
}

# fetch_source PACKAGE DIRECTORY: downloads the newest source of a package into the directory, unopened.
fetch_source() {
    run_apt env --chdir="$2" apt-get "${apt_options[@]}" source --download-only "$1" ||
        fail "cannot download Debian's source of '$1', because apt says '$complaint'; check network and space and run the same command again"
}
