# shellcheck shell=sh
# Memory on loan. A part of init.

# How many pages of 1 GiB are marked as nothing that this system may touch (KPF_OFFLINE).
offline() {
    dd if=/proc/kpageflags bs=4096 skip=512 count=512 2>/dev/null | hexdump -v -e '2/4 "%08x " "\n"' | grep -c '^..[89a-f]'
}

# Memory is lent in several runs where it is not to be had in one, and a VM uses all of them.
loans() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    total=$(grep MemTotal /proc/meminfo)
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    {
        echo 'mount -t tmpfs -o size=100% none /mnt; head -c 200000000 /dev/zero | tr "\0" x >/mnt/x'
        echo 'say "filled=$(wc -c </mnt/x) other=$(tr -d x </mnt/x | wc -c)"'
    } | dd of=/tmp/first.img conv=notrunc 2>/dev/null
    try 0 run --disk first=/tmp/first.img /vms
    say "loans lent=$(field lent) runs=$(field loans) offline=$(offline)"
    waited=0
    while [ "$(field lent)" != 0 ] && [ $waited -lt 600 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    sed 's/^/os0: console large /' /tmp/underpin-0/os0/consoles/large.log
    [ "$(grep MemTotal /proc/meminfo)" = "$total" ] || say "failed MemTotal"
    try 0 detach >/dev/null
    say "loans left=$(field lent) offline=$(offline)"
}
