# shellcheck shell=sh
# VMs beside OS-0, and calls and programs of an OS-0 that is no friend. A part of init.

# words NUMBERS...: bytes of 32-bit words, lowest first.
words() {
    for word; do
        printf "\\x$(printf %02x $((word & 255)))\\x$(printf %02x $((word >> 8 & 255)))\\x$(printf %02x $((word >> 16 & 255)))\\x$(printf %02x $((word >> 24 & 255)))"
    done
}

# frame KIND LENGTH WORDS...: a frame of the control channel.
frame() {
    kind=$1 length=$2
    shift 2
    words 0x54435055 "$kind" 7 "$length" "$@"
}

# This system's own time beside VMs, and what they took of it, is counted, and is no more than there was.
owners_time() {
    try 0 machine -o json >/tmp/machine
    number() { sed -n "s/.*\"$1\": \([0-9]*\),*/\1/p" /tmp/machine; }
    ran=$(number run_ns) stolen=$(number steal_ns)
    # The uptime was asked for before CPUs were.
    try 0 machine -o json >/tmp/machine
    all=$(($(number uptime_ns) * $(nproc)))
    [ "${ran:-0}" -gt 0 ] && [ "${stolen:-0}" -gt 0 ] && [ $((ran + stolen)) -le $all ] ||
        say "failed time ran=$ran stolen=$stolen of=$all"
    say "beside time ran=$ran stolen=$stolen"
}

# What goes past the command through the control device is refused by EL2, and answered.
malformed() {
    echo "lend 64" >/dev/underpin || say "failed lend $(field refusal)"
    exec 3<>/dev/underpin-control
    cat /dev/underpin-control 2>/dev/null && say "failed second listener"
    {
        words 0x12345678 1 2 3                      # no frame
        frame 1 0x7fffffff                          # longer than any
        frame 0xfff 0                               # a request that there is not
        frame 11 4 0                                # CREATE, of too few bytes
        frame 6 32 0x6f626f6e 0x7964 0 0 0 0 0 0    # KILL "nobody"
        frame 15 0                                  # POWER_OFF
        frame 1 0                                   # HELLO
    } >&3
    sleep 2
    dd bs=4096 count=1 <&3 2>/dev/null | hexdump -v -e '32/1 "%02x" "\n"' | sed 's/^/os0: control /'
    at_once
    exec 3>&-
    echo repay >/dev/underpin || say "failed repay $(field refusal)"
}

# One process asks while another reads what is answered: 4096 answers, each whole.
at_once() {
    frame 1 0 >/tmp/asked
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
        cat /tmp/asked /tmp/asked >/tmp/twice
        mv /tmp/twice /tmp/asked
    done
    cat <&3 >/tmp/heard &
    reader=$!
    dd if=/tmp/asked bs=16 >&3 2>/dev/null
    sleep 2
    kill $reader
    each=$(($(stat -c %s /tmp/heard) / 4096))
    hexdump -v -e "$each/1 \"%02x\" \"\\n\"" /tmp/heard | cut -c1-32 | sort | uniq -c | sed 's/^ */os0: answers /'
}

# Runs VMs beside this system while it works, by the verbs that people use; then all is as before.
beside() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    dd if=/tmp/pattern of=/dev/vda bs=64k conv=fsync 2>/dev/null
    dd if=/tmp/pattern bs=64k count=32 2>/dev/null >/tmp/wanted
    wanted=$(sha256sum </tmp/wanted)
    total=$(grep MemTotal /proc/meminfo)
    try 8 run /vms
    [ "$(field refusal)" = not-attached ] || say "failed refusal $(field refusal)"
    try 0 attach
    try 3 list
    # It keeps what it needs for itself.
    /underpin run --lend 1900MiB /vms 2>&1 | grep -q 'cannot spare 1900 MiB: at most [0-9]* MiB can be lent' ||
        say "failed refusal of a loan"
    # Who cannot start is told so, and its memory is back.
    sed 's/^\(name *= *\)"idle"/\1"far"\nnodes = [7]/' /vms/idle.toml >/tmp/far.toml
    try 15 run /tmp/far.toml
    at_first=$(/underpin run /tmp/far.toml 2>&1)
    case $at_first in
    *"there is no node 7: the machine has 1"*) ;;
    *) say "failed refusal of a VM: $at_first" ;;
    esac
    [ "$(grep MemTotal /proc/meminfo)" = "$total" ] || say "failed MemTotal after a refusal"
    cp /tmp/far.toml /vms/
    load "$(nproc)"
    try 15 run /vms
    rm /vms/far.toml
    say "beside lent $(grep MemTotal /proc/meminfo)"
    try 0 list
    try 0 list -o json >/tmp/list
    [ "$(grep -c '"state": "running"' /tmp/list)" -ge 1 ] || say "failed list $(cat /tmp/list)"
    try 0 show idle
    try 0 mem
    try 8 detach
    [ "$(field refusal)" = lent ] || say "failed refusal $(field refusal)"
    echo repay 2>/dev/null >/dev/underpin && say "failed repay with VMs"
    [ "$(field refusal)" = vms-run ] || say "failed refusal $(field refusal)"
    try 11 stop nobody
    try 15 stop idle
    reach
    try 13 run /vms/idle.toml
    try 0 top --batch -n 1 --delay 1s -o json >/tmp/top
    grep -q '"idle"' /tmp/top || say "failed top"
    try 0 metrics >/tmp/metrics
    grep -q '^underpin_vm_state{.*idle' /tmp/metrics || say "failed metrics"
    owners_time
    try 0 trace idle --for 1s >/dev/null
    try 0 report /tmp/report --for 2s -q
    grep -q '<svg' /tmp/report/index.html || say "failed report"
    waited=0
    # The others power themselves off when they have their results.
    until /underpin list -o json >/tmp/list && [ "$(grep -c '"state": "running"' /tmp/list)" = 1 ] || [ $waited -ge 300 ]; do
        work
        sleep 1
        waited=$((waited + 1))
    done
    try 0 console --log vm1 >/dev/null
    try 0 kill idle
    until [ "$(field lent)" = 0 ] || [ $waited -ge 300 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    comes_back_empty
    for log in /tmp/underpin-0/os0/consoles/*; do
        sed "s/^/os0: console $(basename "$log") /" "$log"
    done
    [ "$(grep MemTotal /proc/meminfo)" = "$total" ] || say "failed MemTotal"
    say "beside ended vms=$(find /vms -name 'vm*.toml' | wc -l) waited=$waited"
    malformed
    try 0 detach
    owns_machine
    before=$(field entries)
    seq 0 49999 | sha256sum >/dev/null
    after=$(field entries)
    say "beside done entries=$((after - before - 1))"
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(jobs -p)
}

# call NUMBER WORDS...: a call to the hypervisor that the module would not make is answered so, where negative
# numbers count refusals (abi/src/os0.rs).
call() {
    number=$1
    shift
    [ "$number" -ge 0 ] || number=$((number - 256))
    echo "$*" >/dev/rogue
    read -r found rest </dev/rogue
    [ "$found" = "$number" ] || say "failed call $* was answered $found $rest"
}

# loan NUMBER: where that run of lent memory begins.
loan() {
    echo "c600005a $1" >/dev/rogue
    read -r found start rest </dev/rogue
    echo "0x$start"
}

# A program that reaches for memory which this system has lent gets a fault, as for what is nothing; and so does no
# other, and not the machine.
reach() {
    insmod /rogue.ko || say "failed insmod of a rogue"
    ln -sf /dev/rogue /dev/mem
    lent=$(loan 0)
    devmem 0x48000000 >/dev/null || say "failed its own memory was not read"
    devmem "$lent" 2>/dev/null && say "failed lent memory was read"
    devmem "$lent" 32 1 2>/dev/null && say "failed lent memory was written"
    devmem 0x40200000 2>/dev/null && say "failed hidden memory was read"
    say "reached lent=$lent"
}

# What comes back has nothing of what was there while it was lent: its first 16 MiB, where the VMs' kernels lay. This
# system may use some of it at once.
comes_back_empty() {
    echo "0 ${lent#0x} 1000" >/dev/rogue
    read -r found filled rest </dev/rogue
    [ $((0x$filled)) -lt 1024 ] || say "failed $((0x$filled)) of 4096 pages came back with something in them"
    say "beside filled=$((0x$filled)) of=4096"
}

# What is staged and on its way back cannot be lent before all of it is, nor be given back as a loan: VMs would lose it.
half_staged() {
    # A head (abi/src/stage.rs) of a page, in three blocks.
    {
        printf UNDRSTG1
        printf '\0\020\0\0\0\0\0\0\0\020\0\0\0\0\0\0'
        head -c 32 /dev/zero
        printf '\001\0\0\0\0\0\0\0'
    } >/tmp/stage
    truncate -s 6291456 /tmp/stage
    echo "stage /tmp/stage" >/dev/underpin || say "failed stage $(field refusal)"
    staged=$(loan 0)
    left=$(printf %x $((staged + 0x200000)))
    staged=${staged#0x}
    call 1 c6000059 "$staged"
    call -13 c6000050 "$left" 200000
    call -13 c600005f "$left" 1
    call -13 c6000058 "$left" 200000
    call -15 c6000051 "$staged"
    echo unstage >/dev/underpin || say "failed unstage $(field refusal)"
    rm /tmp/stage
}

# Each argument of each call is checked, whatever the module would say.
rogue() {
    insmod /underpin.ko || say "failed insmod"
    insmod /rogue.ko || say "failed insmod of a rogue"
    own=48000000 nowhere=fffffffffffff000 irq=100
    call -7 c6000050 $own 200000
    call -7 c600005f $own 1
    call -7 c6000052 0 0 $own $irq
    call -17 c6000053
    call -17 c6000054 1
    call -17 c6000055 $own 8
    # FAIL: there is no such call but in images for tests.
    echo "c6000046 0 0" >/dev/rogue
    read -r found rest </dev/rogue
    [ "$found" = -1 ] || say "failed FAIL was answered $found $rest"
    try 0 attach >/dev/null
    # LEND: no whole blocks, EL2's memory, a device, past the end, past all addresses.
    call -11 c6000050 48001000 200000
    call -11 c6000050 $own 0
    call -11 c6000050 $own 1000
    call -12 c6000050 40200000 200000
    call -12 c6000050 8000000 200000
    call -12 c6000050 7fe00000 400000
    call -11 c6000050 ffffffffffe00000 200000
    call -12 c6000050 7fffffffffe00000 8000000000000000
    # LEND_PAGES: no block, no pages, EL2's memory, a device, past the end, past all addresses.
    call -11 c600005f 48001000 1
    call -11 c600005f $own 0
    call -12 c600005f 40200000 1
    call -12 c600005f 8000000 1
    call -12 c600005f 80000000 1
    call -11 c600005f ffffffffffe00000 1
    call -12 c600005f 7fffffffffe00000 1
    call -15 c6000051 $own
    call -15 c6000052 0 0 $own $irq
    echo "lend 64" >/dev/underpin || say "failed lend $(field refusal)"
    lent=$(loan 0)
    lent=${lent#0x}
    # OPEN: a bundle that is not in the loan; an area for disks that is not whole pages, EL2's, lent, a device,
    # past the end, past all addresses; an interrupt that there is not, or is a CPU's own. Else it is open already.
    call -15 c6000052 $own 1000 $own $irq
    call -15 c6000052 "$lent" 8000000 $own $irq
    call -15 c6000052 "$lent" $nowhere $own $irq
    for function in "c6000052 0 0" c600005b; do
        for area in 48000800 40200000 "$lent" 9000000 7ffff000 $nowhere 7fffffffffff0000; do
            call -12 "$function" $area $irq
        done
        for interrupt in 0 1f 3fd ffff 100000100; do
            call -23 "$function" $own $interrupt
        done
    done
    call -16 c6000052 0 0 $own $irq
    call -17 c600005b $own $irq
    call -16 c6000050 $own 200000
    call -16 c600005f $own 1
    call -16 c6000051 "$lent"
    # TELL and HEAR: what is no part of a page of its own.
    for function in c6000055 c6000056; do
        for page in 48000fff 40200000 "$lent" 9000000 80000000 $nowhere; do
            call -12 $function $page 2
        done
        call -12 $function $own 1001
        call -12 $function $own ffffffffffffffff
        call 0 $function $own 0
    done
    # STAGE, UNSTAGE, LOANED, GIVE_IMAGE, and what there is not.
    call -13 c6000058 "$lent" 200000
    call -11 c6000058 $own 1
    call -15 c6000059 $own
    call -15 c600005a 1
    call -15 c600005a ffffffffffffffff
    call -24 c6000047 $own 7 1000
    call -12 c6000047 40200000 0 1000
    echo c6000060 >/dev/rogue
    read -r found rest </dev/rogue
    [ "$found" = -1 ] || say "failed a call that there is not was answered $found"
    echo repay >/dev/underpin || say "failed repay $(field refusal)"
    half_staged
    try 0 detach >/dev/null
    say "rogue ended"
}

# This system's registers while a VM beside it, on its only CPU, writes all that it can; and before, when they change
# by this system's own doing.
registers() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    insmod /rogue.ko || say "failed insmod of a rogue"
    look=/sys/module/rogue/parameters/registers
    try 0 attach >/dev/null
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        echo alone >$look
        sleep 0.1
    done
    try 0 run /vms
    waited=0
    until [ "$(field lent)" = 0 ] || [ $waited -ge 600 ]; do
        echo beside >$look
        sleep 0.1
        waited=$((waited + 1))
    done
    echo beside >$look
    sed 's/^/os0: console /' /tmp/underpin-0/os0/consoles/writer.log
    try 0 detach >/dev/null
    say "registers looks=$waited"
}
