# shellcheck shell=sh
# What OS-0 does while it is watched, and what its devices and clocks are looked at with. A part of init.

work() {
    say "work sha256=$(seq 0 19999 | sha256sum | cut -d' ' -f1)"
}

# Every CPU but the first off and on again, three times.
hotplug() {
    for round in 1 2 3; do
        for cpu in /sys/devices/system/cpu/cpu[1-9]*; do
            [ -e "$cpu/online" ] || continue # there may be one CPU alone
            echo 0 >"$cpu/online" && echo 1 >"$cpu/online" || say "failed hotplug $round $cpu"
        done
    done
    say "hotplug cpus=$(nproc)"
}

# checksum FILE: of as many bytes as the pattern has, past the page cache.
checksum() {
    echo 3 >/proc/sys/vm/drop_caches
    head -c "$(stat -c %s /tmp/pattern)" "$1" | sha256sum | cut -d' ' -f1
}

# What is written to the disk is read again; its interrupts come by the ITS where it is a PCI device.
disk() {
    seq 0 399999 >/tmp/pattern
    dd if=/tmp/pattern of=/dev/vda bs=64k conv=fsync 2>/dev/null || say "failed disk write"
    [ "$(checksum /dev/vda)" = "$(checksum /tmp/pattern)" ] || say "failed disk checksum"
    say "disk ok its=$(grep -c 'ITS.*virtio' /proc/interrupts)"
}

# Reads the clock again and again; that it went back is said.
clock() {
    last=0 reads=0
    while :; do
        now=$EPOCHREALTIME
        now=${now%.*}${now#*.}
        [ "$now" -ge "$last" ] || say "failed clock went from $last to $now"
        last=$now reads=$((reads + 1))
        [ $((reads % 2000)) != 0 ] || sleep 0.1
    done
}

# What goes out by the network card comes back; how often is in /tmp/echoes.
echoes() {
    while :; do
        [ "$(nc 10.0.2.100 7 </tmp/wanted | sha256sum)" = "$wanted" ] || say "failed echo's checksum"
        echo >>/tmp/echoes
    done
}

# load_forks PROCESSES: so many fork and execute, until they are killed.
load_forks() {
    count=0
    while [ $count -lt "$1" ]; do
        while :; do /bin/busybox true; done &
        count=$((count + 1))
    done
}

# load PROCESSES: forks, direct reads, network traffic where there is a card, and a clock that is read, until
# it is killed; a wrong checksum is said.
load() {
    load_forks "$1"
    while :; do
        dd if=/dev/vda of=/tmp/read bs=64k count=32 iflag=direct 2>/dev/null || say "failed direct read"
        [ "$(sha256sum </tmp/read)" = "$wanted" ] || say "failed direct read checksum"
    done &
    clock &
    if [ -e /sys/class/net/eth0 ]; then
        ip link set eth0 up
        ip addr add 10.0.2.15/24 dev eth0
        echoes &
    fi
}
