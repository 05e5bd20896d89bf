# shellcheck shell=sh
# Attached and detached again, checked before, failing on purpose, and replaced by another image. A part of init.

# field NAME: of what the first CPU's entry of /dev/underpin says.
field() {
    taskset 1 cat /dev/underpin | sed "s/.*\"$1\":\"*\([^\",}]*\).*/\1/"
}

# Every CPU has the whole machine for itself: EL2 is beneath none, and what EL2 keeps can be read on each.
owns_machine() {
    cpu=0
    while [ $cpu -lt "$(nproc)" ]; do
        taskset $((1 << cpu)) devmem "$(option os0.hidden 0x40200000)" >/dev/null 2>&1 || say "failed cpu $cpu is not left alone"
        cpu=$((cpu + 1))
    done
}

# Whether the maintenance interrupt of CPU 0 (PPI 25 of QEMU's machine) can be enabled from here: 0 or 1.
reaches_maintenance() {
    devmem 0x080b0100 32 0x02000000
    echo $(($(devmem 0x080b0100 32) >> 25 & 1))
    devmem 0x080b0180 32 0x02000000
}

# Attaches and detaches os0.pairs= times under load; CPUs come and go while attached.
switch() {
    insmod /underpin.ko || say "failed insmod"
    [ "$(field state)" = detached ] || say "failed state"
    dd if=/tmp/pattern of=/dev/vda bs=64k conv=fsync 2>/dev/null
    dd if=/tmp/pattern bs=64k count=32 2>/dev/null >/tmp/wanted
    wanted=$(sha256sum </tmp/wanted)
    echo detach 2>/dev/null >/dev/underpin && say "failed detach was not refused"
    [ "$(field refusal)" = not-attached ] || say "failed refusal"
    [ "$(reaches_maintenance)" = 1 ] || say "failed detached, the interrupt controller is not its own"
    load "$(nproc)"
    pair=0 half=0
    while [ $pair -lt "$(option os0.pairs 10)" ]; do
        echo attach >/dev/underpin || say "failed attach $pair $(field refusal)"
        [ "$(field state)" = attached ] || say "failed not attached $pair"
        if [ $pair = 1 ]; then
            hotplug
            # EL2's memory is no memory for whoever runs above.
            devmem "$(option os0.hidden 0x40200000)" 2>/dev/null && say "failed hidden memory was read"
            # Nor is its interrupt any that can be silenced.
            [ "$(reaches_maintenance)" = 0 ] || say "failed maintenance interrupt was reached"
        fi
        echo detach >/dev/underpin || say "failed detach $pair $(field refusal)"
        [ "$(field state)" = detached ] || say "failed not detached $pair"
        pair=$((pair + 1))
        [ ! -e /tmp/echoes ] || [ $((pair * 2)) != "$(option os0.pairs 10)" ] || half=$(wc -l </tmp/echoes)
    done
    owns_machine
    # Detached, nothing enters EL2 but the question itself, on no CPU.
    before=$(field entries)
    seq 0 49999 | sha256sum >/dev/null
    after=$(field entries)
    say "switch pairs=$pair retries=$(field retries) entries=$((after - before - 1))"
    [ ! -e /sys/class/net/eth0 ] || say "echoes=$(wc -l </tmp/echoes) half=$half"
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(jobs -p)
}

# try STATUS WORDS...: the command ends with that status.
try() {
    wanted_status=$1
    shift
    /underpin "$@"
    status=$?
    [ $status = "$wanted_status" ] || say "failed underpin $* ended with $status"
}

# What the command says of a machine as os0.machine= has it: ready, or not.
doctor() {
    if [ "$(option os0.machine ready)" = ready ]; then
        insmod /underpin.ko || say "failed insmod"
        try 0 doctor
        try 0 attach --dry-run -o json >/tmp/dry
        grep -q '"ready": true' /tmp/dry || say "failed dry run"
        [ "$(field beneath)" = 0 ] || say "failed dry run attached"
        try 8 detach --dry-run
        try 8 detach
        try 0 attach
        [ "$(field beneath)" = "$(nproc)" ] || say "failed not attached"
        try 8 attach
        try 0 doctor >/dev/null
        try 0 detach --dry-run
        try 0 detach
        try 0 status
        try 0 explain late
        try 0 log
    else
        mount -t securityfs securityfs /sys/kernel/security
        insmod /underpin.ko && say "failed insmod was not refused"
        try 7 doctor
        try 7 attach
        try 7 status
    fi
    say "doctor ended"
}

# Each step of a switch fails on each CPU, under load; the system stays as it was, and the next try works.
inject() {
    insmod /underpin.ko || say "failed insmod"
    dd if=/tmp/pattern of=/dev/vda bs=64k conv=fsync 2>/dev/null
    dd if=/tmp/pattern bs=64k count=32 2>/dev/null >/tmp/wanted
    wanted=$(sha256sum </tmp/wanted)
    load "$(nproc)"
    cpu=0
    while [ $cpu -lt "$(nproc)" ]; do
        for step in 0 1 2; do
            echo "fail $step $cpu" >/dev/underpin || say "failed injection is not allowed"
            echo attach 2>/dev/null >/dev/underpin && say "failed attach went on $cpu $step"
            [ "$(field refusal) $(field beneath)" = "injected 0" ] || say "failed rollback $cpu $step"
            echo attach >/dev/underpin || say "failed attach after $cpu $step $(field refusal)"
            echo detach >/dev/underpin || say "failed detach after $cpu $step $(field refusal)"
        done
        # One CPU stays; the next try takes it, too.
        echo attach >/dev/underpin || say "failed attach before $cpu $(field refusal)"
        echo "fail 0 $cpu" >/dev/underpin
        echo detach 2>/dev/null >/dev/underpin && say "failed detach went on $cpu"
        [ "$(field refusal) $(field beneath)" = "injected 1" ] || say "failed detach of others $cpu"
        echo detach >/dev/underpin || say "failed detach after $cpu $(field refusal)"
        [ "$(field beneath)" = 0 ] || say "failed not detached after $cpu"
        cpu=$((cpu + 1))
    done
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(jobs -p)
    say "inject cpus=$cpu logged=$(/underpin log | grep -c 'as a test asked')"
}

# upgraded IMAGE NUMBER [PARKED]: it takes the place of the one that runs, and is the so-manyth to do so; whether VMs
# are parked then, which is false where nothing is said.
upgraded() {
    try 0 upgrade "/images/$1" >/dev/null
    [ "$(field upgrades) $(field parked)" = "$2 ${3:-false}" ] || say "failed upgrade to $1 $(cat /dev/underpin) $(/underpin log | tail -n 3)"
}

# not_upgraded NUMBER FILE:REFUSAL...: these images are refused so, and then one that fits fails: before it has its own
# memory, by an exception, and at the end. The one that runs, the NUMBERth, goes on.
not_upgraded() {
    number=$1
    shift
    for file; do
        try 8 upgrade "/images/${file%:*}"
        [ "$(field refusal)" = "${file#*:}" ] || say "failed refusal of $file $(field refusal)"
    done
    for step in 1 2 3; do
        echo "fail $step 65535" >/dev/underpin || say "failed injection is not allowed"
        try 8 upgrade /images/other
        [ "$(field refusal) $(field upgrades)" = "new-failed $number" ] || say "failed step $step $(cat /dev/underpin)"
    done
}

# A new image takes the place of the one that runs, under load; what does not fit is refused.
upgrade() {
    insmod /underpin.ko || say "failed insmod"
    dd if=/tmp/pattern of=/dev/vda bs=64k conv=fsync 2>/dev/null
    dd if=/tmp/pattern bs=64k count=32 2>/dev/null >/tmp/wanted
    wanted=$(sha256sum </tmp/wanted)
    load "$(nproc)"
    dd if=/dev/zero of=/tmp/large bs=1M count=16 2>/dev/null
    not_upgraded 0 changed:no-image future:misfit ../tmp/large:too-little ../tmp/wanted:no-image
    try 0 attach >/dev/null
    try 8 upgrade /images/other
    [ "$(field refusal)" = already-attached ] || say "failed refusal $(field refusal)"
    try 0 detach >/dev/null
    upgraded other 1
    hotplug
    try 0 attach >/dev/null
    try 0 detach >/dev/null
    upgraded same 2
    try 0 attach >/dev/null
    hotplug
    try 0 detach >/dev/null
    for number in 3 5; do
        upgraded other $number
        upgraded same $((number + 1))
    done
    # One CPU is off meanwhile, and comes up in the new image.
    echo 0 >/sys/devices/system/cpu/cpu1/online
    upgraded other 7
    echo 1 >/sys/devices/system/cpu/cpu1/online || say "failed cpu1 after an upgrade"
    try 0 attach >/dev/null
    try 0 doctor >/dev/null
    try 0 detach >/dev/null
    /underpin log | grep -q 'took the place of another image, number 7' || say "failed log"
    before=$(field entries)
    seq 0 49999 | sha256sum >/dev/null
    after=$(field entries)
    say "upgrade upgrades=$(field upgrades) entries=$((after - before - 1)) echoes=$(wc -l </tmp/echoes)"
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(jobs -p)
}
