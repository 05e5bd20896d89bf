# shellcheck shell=sh
# OS-0 ends, and what becomes of its VMs. A part of init.

# This system ends, as os0.end= says, while VMs are at work and one writes to a disk that it serves. What was staged
# does `survived`.
outlived() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    try 0 run --disk first=/tmp/first.img --disk data=/dev/vda /vms
    kernel=$(find /cache/kernels -name vmlinuz)
    try 6 stage --kernel /underpin.ko --initrd /again/initrd --append nonsense
    try 0 stage --kernel "$kernel" --initrd /again/initrd \
        --append "$(sed 's/os0.do=outlived/os0.do=survived,work/' /proc/cmdline)"
    waited=0
    until dd if=/dev/vda iflag=direct bs=4k count=1 2>/dev/null | grep -q underpin || [ $waited -ge 600 ]; do
        sleep 0.2
        waited=$((waited + 1))
    done
    [ "$(option os0.park no)" = no ] || try 0 detach --park
    say "outlived ends"
    case $(option os0.end reboot) in
    panic)
        echo 1 >/proc/sys/kernel/panic
        echo c >/proc/sysrq-trigger
        ;;
    poweroff) poweroff -f ;;
    kexec) /kexec ;;
    *) reboot -f ;;
    esac
    sleep 60
}

# What was staged is changed before this system ends, and cannot be started: the machine ends.
spoiled() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    insmod /rogue.ko || say "failed insmod of a rogue"
    ln -sf /dev/rogue /dev/mem
    try 0 attach >/dev/null
    try 0 run /vms >/dev/null
    try 0 stage --kernel "$(find /cache/kernels -name vmlinuz)" --initrd /underpin.ko --append "$(cat /proc/cmdline)"
    try 0 detach --park >/dev/null
    number=0
    while echo "c600005a $number" >/dev/rogue && read -r found start size staged </dev/rogue && [ "$found $staged" != "0 1" ]; do
        number=$((number + 1))
    done
    devmem "0x$start" 32 0
    try 0 attach >/dev/null
    say "spoiled 0x$start"
    reboot -f
}

# What was staged panics at once, whenever it starts.
looping() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach >/dev/null
    try 0 run /vms >/dev/null
    try 0 stage --kernel "$(find /cache/kernels -name vmlinuz)" --initrd /underpin.ko --append "$(cat /proc/cmdline) panic=1"
    say "looping"
    reboot -f
}

# kexec, with nothing lent.
kexec() {
    insmod /underpin.ko || say "failed insmod"
    [ "$(option os0.attached no)" = no ] || try 0 attach
    /kexec
    say "failed kexec"
}

# In the place of a system that has ended: its VMs go on, and their memory becomes this one's.
survived() {
    total=$(sed -n 's/MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)
    insmod /underpin.ko || say "failed insmod"
    lent=$(($(field lent) >> 10))
    say "survived lent=$lent staged=$(($(field staged) >> 10))"
    [ "$(field state) $lent" != "attached 0" ] || say "failed state $(cat /dev/underpin)"
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    try 2 serve --disk first=/tmp/first.img
    try 0 serve --detach --disk data=/dev/vda --disk first=/tmp/first.img
    try 0 list
    if [ "$(option os0.park no)" != no ]; then
        try 0 resume vm1
        try 0 resume writer
    fi
    waited=0
    until [ "$(field lent)" = 0 ] || [ $waited -ge 600 ]; do
        sleep 0.5
        waited=$((waited + 1))
    done
    try 0 stage --drop
    for log in /tmp/underpin-0/os0/consoles/*; do
        sed "s/^/os0: console $(basename "$log") /" "$log"
    done
    now=$(sed -n 's/MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)
    [ $((now - total)) -ge "$lent" ] || say "failed MemTotal $total and $lent lent became $now"
    mib=$(option os0.mib 16)
    try 0 detach
    before=$(field entries)
    seq 0 49999 | sha256sum >/dev/null
    after=$(field entries)
    say "survived disk sha256=$(dd if=/dev/vda bs=1M count="$mib" 2>/dev/null | sha256sum | cut -d' ' -f1)"
    say "survived entries=$((after - before - 1))"
}
