# shellcheck shell=sh
# For people. A part of init.

# happens WORDS...: with the time.
happens() {
    say "at=$EPOCHREALTIME $*"
}

# Forks on all CPUs; how many there have been is said again and again, and what happens to this system meanwhile.
demo() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    echo 0 >/proc/sys/kernel/randomize_va_space
    echo 1 >/proc/sys/kernel/printk
    load_forks "$(nproc)"
    while sleep 0.1; do
        while read -r name value rest; do
            [ "$name" != processes ] || happens "forks=$value $rest"
        done </proc/stat
    done &
    sleep 1
    happens began
    sleep 1
    happens attaches
    try 0 attach >/dev/null
    happens attached
    sleep 1
    logs=/tmp/underpin-0/os0/consoles
    happens starts one
    # As much as both need.
    try 0 run --lend 340MiB /vms/one.toml >/dev/null
    sleep 0.5
    happens starts two
    try 0 run /vms/two.toml >/dev/null
    for vm in one two; do
        waited=0
        until grep -q poweroff $logs/$vm.log || [ $waited -ge 600 ]; do
            sleep 0.1
            waited=$((waited + 1))
        done
        happens "ends $vm $(sed -n 's/.*work //p' $logs/$vm.log)"
    done
    waited=0
    until [ "$(field lent)" = 0 ] || [ $waited -ge 600 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    happens repaid
    sleep 1
    happens detaches
    try 0 detach >/dev/null
    happens detached
    sleep 1
    happens over
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(jobs -p)
}

# For people: a shell, where the demo of attaching can be played by hand.
shell() {
    export UNDERPIN_CACHE=/cache
    export PS1='os0# '
    mkdir -p /usr/bin
    ln -s /underpin /usr/bin/underpin
    insmod /underpin.ko || say "failed insmod"
    setsid cttyhack sh
}
