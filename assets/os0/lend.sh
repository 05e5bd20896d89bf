# shellcheck shell=sh
# Memory on loan. A part of init.

# The flags of each page of 1 GiB.
flags() {
    dd if=/proc/kpageflags bs=4096 skip=512 count=512 2>/dev/null | hexdump -v -e '2/4 "%08x " "\n"'
}

# How many of them are marked as nothing that this system may touch (KPF_OFFLINE).
offline() {
    flags | grep -c '^..[89a-f]'
}

# Memory is lent in several runs where it is not to be had in one, and a VM uses all of them.
loans() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    total=$(grep MemTotal /proc/meminfo)
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    {
        echo 'mount -t tmpfs -o size=100% none /mnt; head -c '"$(option os0.fill 200000000)"' /dev/zero | tr "\0" x >/mnt/x'
        echo 'say "filled=$(wc -c </mnt/x) other=$(tr -d x </mnt/x | wc -c)"'
    } | dd of=/tmp/first.img conv=notrunc 2>/dev/null
    try 0 run --disk first=/tmp/first.img /vms
    "$@"
    say "loans lent=$(field lent) runs=$(field loans) offline=$(offline) scattered=$(field scattered)"
    waited=0
    while [ "$(field lent)" != 0 ] && [ $waited -lt 600 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    sed 's/^/os0: console large /' /tmp/underpin-0/os0/consoles/large.log
    [ "$(grep MemTotal /proc/meminfo)" = "$total" ] || say "failed MemTotal"
    try 0 detach >/dev/null
    dmesg | grep 'underpin: .* to be lent' | sed 's/^/os0: /'
    say "loans left=$(field lent) offline=$(offline)"
}

# This system reaches no page that it has lent, and the next one, which is its own; while VMs work, and once they have
# been parked.
reach_pieces() {
    insmod /rogue.ko || say "failed insmod of a rogue"
    ln -sf /dev/rogue /dev/mem
    page=$(flags | awk '{ is = /^..[89a-f]/ } was && !is { last = NR - 2 } { was = is } END { print last }')
    try 0 detach --park >/dev/null
    # No record says where single pages are: the hypervisor stays, and VMs with it.
    try 8 upgrade /images/other
    [ "$(field refusal) $(field upgrades) $(field parked)" = "not-recorded 0 true" ] || say "failed refusal of upgrade $(cat /dev/underpin)"
    /underpin log | grep -q 'no upgrade: single pages are lent' || say "failed words of the refusal $(/underpin log | tail -n 2)"
    try 0 attach >/dev/null
    devmem $(((0x40000 + page) * 4096)) 2>/dev/null && say "failed a page that is lent was read"
    devmem $(((0x40001 + page) * 4096)) >/dev/null || say "failed a page of its own was not read"
    say "reached page=$page"
}

# As loans, where most memory is in pieces.
scattered() {
    waited=0
    : >/tmp/fragment
    /fragment 32 122 >/tmp/fragment &
    while ! grep -q fragment: /tmp/fragment && [ $waited -lt 600 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    say "$(cat /tmp/fragment)"
    loans reach_pieces
    kill $!
}
