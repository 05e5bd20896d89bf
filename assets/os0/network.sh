# shellcheck shell=sh
# VMs on the network of OS-0. A part of init.

# The VM's script for `network`: an address, a file, what is outside, and a stream that takes its time.
network_script() {
    cat <<'SCRIPT'
cat >/tmp/dhcp <<'END'
#!/bin/busybox sh
[ "$1" = bound ] || exit 0
ip addr add "$ip/$mask" dev "$interface"
ip route add default via "$router"
echo "$ip" >/tmp/address
END
chmod +x /tmp/dhcp

sum() {
    sha256sum | cut -d' ' -f1
}
ip link set lo up
ip link set eth0 up
udhcpc -i eth0 -q -t 20 -T 2 -n -s /tmp/dhcp >/dev/null 2>&1 || say "net failed dhcp"
say "net address $(cat /tmp/address)"
wget -q -O /tmp/pattern 10.0.2.129/pattern || say "net failed wget"
say "net fetched sha256=$(sum </tmp/pattern)"
[ "$(nc 10.0.2.100 7 </tmp/pattern | sum)" = "$(sum </tmp/pattern)" ] && say "net outside ok"

# Over the base of its disk, of which parts are in its memory and in what it wrote.
dd if=/tmp/pattern of=/dev/vda bs=4k seek=64 conv=fsync 2>/dev/null
echo 3 >/proc/sys/vm/drop_caches
disk() {
    tail -c +262145 /dev/vda | head -c "$(stat -c %s /tmp/pattern)" | sum
}
[ "$(disk)" = "$(sum </tmp/pattern)" ] || say "net failed disk"

data() {
    for round in 1 2 3 4 5 6; do echo "$round"; cat /tmp/pattern; sleep "$1"; done
}
data 0.3 | nc 10.0.2.129 5000 >/dev/null
say "net sent sha256=$(data 0 | sum)"
say "net kept sha256=$(disk)"
echo 3 >/proc/sys/vm/drop_caches
say "net disk sha256=$(disk)"
SCRIPT
}

# uplinks NUMBERS...: each argument of the calls for a way out is checked; so they are answered, one after the other:
# an area that is not whole pages, EL2's, lent, past all addresses, a device; an interrupt that is a CPU's own, that
# there is not (twice); all in order, which would be taken where there is no way out yet; and frames.
uplinks() {
    for words in '5d 48000008 11f' '5d 40200000 11f' "5d $lent 11f" '5d fffffffffffff000 11f' '5d 0 11f' \
        '5d 48000000 1f' '5d 48000000 120' '5d 48000000 10000011f' '5d 48000000 11f' 5e; do
        call "$1" "c60000$words"
        shift
    done
}

# The way out of a VM's switch is a network device of this system, which routes; the VM is parked in the middle of
# a stream.
network() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    carrier=/sys/class/net/underpin0/carrier
    insmod /rogue.ko || say "failed insmod of a rogue"
    lent=48000000
    uplinks -17 -17 -17 -17 -17 -17 -17 -17 -17 -17
    ip link set lo up
    ip addr add 10.0.2.129/25 dev underpin0
    ip link set underpin0 up
    [ "$(cat $carrier)" = 0 ] || say "failed carrier without VMs"
    if [ -e /sys/class/net/eth0 ]; then
        ip link set eth0 up
        ip addr add 10.0.2.15/24 dev eth0
        # What is outside finds the VM by this system's own address.
        echo 1 >/proc/sys/net/ipv4/ip_forward
        echo 1 >/proc/sys/net/ipv4/conf/eth0/proxy_arp
    fi
    printf '%s\n' 'start 10.0.2.130' 'end 10.0.2.140' 'interface underpin0' 'lease_file /tmp/leases' \
        'option subnet 255.255.255.128' 'option router 10.0.2.129' >/tmp/udhcpd.conf
    : >/tmp/leases
    udhcpd /tmp/udhcpd.conf 2>/dev/null || say "failed udhcpd"
    mkdir /tmp/www
    seq 0 399999 >/tmp/www/pattern
    httpd -h /tmp/www || say "failed httpd"
    mkfifo /tmp/never
    nc -l -p 5000 <>/tmp/never >/tmp/heard &
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=4 2>/dev/null
    network_script | dd of=/tmp/first.img conv=notrunc 2>/dev/null
    try 0 run --disk first=/tmp/first.img /vms
    [ "$(cat $carrier)" = 1 ] || say "failed carrier beside VMs"
    lent=$(loan 0)
    lent=${lent#0x}
    uplinks -12 -12 -12 -12 -12 -23 -23 -23 -16 0
    say "network refused wrong calls"
    # What comes while it is down is gone, and what comes then does not wait for it.
    ip link set underpin0 down
    sleep 1
    ip link set underpin0 up
    try 8 detach
    parks=0 waited=0 entries=0
    while [ "$(field lent)" != 0 ] && [ $waited -lt 600 ]; do
        if [ $parks = 0 ] && [ "$(stat -c %s /tmp/heard)" -gt 3000000 ]; then
            try 0 machine
            try 0 machine -o json >/tmp/machine
            try 0 detach --park
            parks=1 heard=$(stat -c %s /tmp/heard)
            [ "$(cat $carrier)" = 0 ] || say "failed carrier of parked VMs"
            # The hypervisor is replaced, and the stream goes on over that.
            upgraded other 1 true
            before=$(field entries)
            ping -c 1 -W 1 10.0.2.130 >/dev/null && say "failed a parked VM was heard"
            entries=$(($(field entries) - before - 1))
            try 0 attach
            [ "$(cat $carrier)" = 1 ] || say "failed carrier after parking"
            say "network parked at=$heard"
        fi
        sleep 0.2
        waited=$((waited + 1))
    done
    wait $!
    sed 's/^/os0: console web /' /tmp/underpin-0/os0/consoles/web.log
    say "network own sha256=$(sha256sum </tmp/www/pattern | cut -d' ' -f1)"
    say "network heard sha256=$(sha256sum </tmp/heard | cut -d' ' -f1) parks=$parks bytes=$(stat -c %s /tmp/heard)"
    say "network card $(tr -d ' \n' </tmp/machine | sed 's/.*"card":{\([^}]*\)}.*/\1/' | tr -d '"')"
    [ "$(cat $carrier)" = 0 ] || say "failed carrier after VMs"
    try 0 detach
    before=$(field entries)
    ping -c 1 -W 1 10.0.2.130 >/dev/null
    seq 0 49999 | sha256sum >/dev/null
    say "network done entries=$((entries + $(field entries) - before - 1))"
}

# This system's end of VMs' network, and what a VM there serves.
near() {
    insmod /underpin.ko || say "failed insmod"
    ip link set lo up
    ip addr add 10.9.0.1/24 dev underpin0
    ip link set underpin0 up
}

# fetch WHO: what the VM serves is what this system can make itself.
fetch() {
    tries=0
    until wget -q -T 5 -O /tmp/got 10.9.0.2/numbers 2>/dev/null || [ $tries -ge 120 ]; do
        tries=$((tries + 1))
        sleep 0.5
    done
    [ "$(sha256sum </tmp/got)" = "$(seq 0 399999 | sha256sum)" ] || say "failed fetch by $1"
    say "$1 has fetched"
}

# A VM serves this system a file by its network device, and then this system ends. What was staged does `mended`.
severed() {
    export UNDERPIN_CACHE=/cache
    near
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    {
        echo 'ip link set eth0 up; ip addr add 10.9.0.2/24 dev eth0; mkdir /tmp/www'
        echo 'seq 0 399999 >/tmp/www/numbers; httpd -h /tmp/www; while :; do sleep 3600; done'
    } | dd of=/tmp/first.img conv=notrunc 2>/dev/null
    try 0 run --disk first=/tmp/first.img /vms
    fetch first
    try 0 stage --kernel "$(find /cache/kernels -name vmlinuz)" --initrd /again/initrd \
        --append "$(sed 's/os0.do=severed/os0.do=mended/' /proc/cmdline)"
    reboot -f
    sleep 60
}

# In the place of a system that has ended: the VM is reached as it was before.
mended() {
    near
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    try 0 serve --detach --disk first=/tmp/first.img
    fetch second
    try 0 kill web
    waited=0
    until [ "$(field lent)" = 0 ] || [ $waited -ge 300 ]; do
        sleep 0.5
        waited=$((waited + 1))
    done
    [ "$(cat /sys/class/net/underpin0/carrier)" = 0 ] || say "failed carrier after VMs"
    try 0 stage --drop
    try 0 detach
    say "mended lent=$(field lent)"
}
