# shellcheck shell=sh
# VMs that are parked, with disks that OS-0 serves, and clocks. A part of init.

# Kills the server of the VM writer's disk twice, each time as soon as is_half_written says so, and starts it again;
# until the VM has ended, whose console is shown.
kill_servers() {
    log=/tmp/underpin-0/os0/consoles/writer.log
    kills=0 waited=0
    while [ "$(field lent)" != 0 ] && [ $waited -lt 1200 ]; do
        if [ $kills -lt 2 ] && is_half_written && ! grep -q diskwrite $log; then
            kill -9 "$(cat /tmp/underpin-0/os0/lock)" && kills=$((kills + 1))
            sleep 1
            try 0 serve --detach
            if [ $kills = 2 ] && [ -e /images/other ]; then replace_once; fi
        fi
        sleep 0.1
        waited=$((waited + 1))
    done
    sed 's/^/os0: console writer /' $log
}

# A VM is parked, the hypervisor is replaced, and the VM goes on.
replace_once() {
    try 0 detach --park >/dev/null
    upgraded other 1 true
    try 0 attach >/dev/null
}

# A VM writes and reads a disk that this system serves from a file, and the server is killed in the middle.
served() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach
    mib=$(option os0.mib 16)
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    dd if=/dev/zero of=/tmp/data.img bs=1M count="$mib" 2>/dev/null
    try 0 run --disk first=/tmp/first.img --disk data=/tmp/data.img /vms
    # Nobody else may serve the same file, or the same VMs.
    try 1 serve
    is_half_written() { [ "$(head -c 4096 /tmp/data.img | tr -d '\000' | wc -c)" != 0 ]; }
    kill_servers
    say "served kills=$kills mib=$mib sha256=$(sha256sum </tmp/data.img | cut -d' ' -f1)"
    try 0 detach
}

# A VM writes and reads a disk that this system serves from a qcow2 image on a block device; the server is killed twice.
served_image() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    # What is none, and what would need another file, is refused before anything is lent.
    try 6 run --disk first=/tmp/first.img,format=qcow2 --disk data=/dev/vda,format=qcow2 /vms
    dd if=/dev/vda of=/tmp/based.img bs=64k count=4 2>/dev/null
    printf '\001' | dd of=/tmp/based.img bs=1 seek=15 conv=notrunc 2>/dev/null
    try 6 run --disk first=/tmp/first.img --disk data=/tmp/based.img,format=qcow2 /vms
    [ "$(field lent)" = 0 ] || say "failed lent"
    try 0 run --disk first=/tmp/first.img --disk data=/dev/vda,format=qcow2 /vms
    # Sectors that were written, so many for each.
    is_half_written() { [ "$(awk '{ print $7 }' /sys/block/vda/stat)" -gt $((4000 * (kills + 1))) ]; }
    kill_servers
    say "served image kills=$kills"
    try 0 detach
}

# A VM writes and syncs a disk that this system serves from a block device; then the test takes the power away.
served_till_power_lost() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    try 0 run --disk first=/tmp/first.img --disk data=/dev/vda /vms
    log=/tmp/underpin-0/os0/consoles/writer.log
    until grep -q 'diskwrite .*sha256' $log; do sleep 0.1; done
    sed 's/^/os0: console writer /' $log
    say "served and synced"
    sleep 3600
}

# A VM writes over a base, which is a file of this system's, and what it writes is in another file.
overlay() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    dd if=/dev/zero of=/tmp/room.img bs=1M count=8 2>/dev/null
    seq 0 1999999 | dd bs=1M count=14 iflag=fullblock >/tmp/base.img 2>/dev/null
    cp /tmp/base.img /tmp/kept.img
    cat >/tmp/script <<'EOF'
forget() { echo 3 >/proc/sys/vm/drop_caches; }
sum() { sha256sum | cut -c-64; }
await /dev/vdb
dd if=/dev/urandom of=/tmp/new bs=100000 count=60 2>/dev/null
wanted=$( (head -c 2560 /dev/vdb; cat /tmp/new; tail -c +6002561 /dev/vdb) | sum)
dd if=/tmp/new of=/dev/vdb bs=512 seek=5 conv=fsync 2>/dev/null
forget
found=$(sum </dev/vdb)
first=$(dd if=/dev/vdb bs=100000 count=60 2>/dev/null | sum)
dd if=/tmp/new of=/dev/vdb bs=1M seek=7 oflag=direct 2>/tmp/said
full=$?
forget
[ "$first" = "$(dd if=/dev/vdb bs=100000 count=60 2>/dev/null | sum)" ] && grep -q 'Input/output error' /tmp/said && say "full=$full told"
say "wanted sha256=$wanted"
say "diskwrite ok sha256=$found"
EOF
    dd if=/tmp/script of=/tmp/first.img conv=notrunc 2>/dev/null
    set -- --disk first=/tmp/first.img --disk base=/tmp/base.img --disk kept=/tmp/kept.img
    try 0 run --lend 256MiB "$@" --disk room=scratch:/tmp/room.img /vms/writer.toml
    # Nobody said that what the file holds may be overwritten.
    try 15 run /vms/careless.toml
    is_half_written() { [ "$(tr -d '\000' </tmp/room.img | wc -c)" -gt $((2000000 * (kills + 1))) ]; }
    kill_servers
    cmp -s /tmp/base.img /tmp/kept.img && base=same
    say "overlay kills=$kills base=${base:-other} stored=$(tr -d '\000' </tmp/room.img | wc -c)"
    try 0 detach
}

# A VM has a copy of a directory of this system's, and a file that is made for it; only that one is changed.
directory() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    mkdir /srv /srv/www
    echo 'open till six' >/srv/www/notice
    cat >/tmp/script <<'EOF'
await /dev/vdc
mount -t ext4 /dev/vdc /mnt
read=$(tr ' ' _ </mnt/notice)
sed -i s/six/ten/ /mnt/notice
umount /mnt
mount -t ext4 /dev/vdc /mnt
say "directory read=$read wrote=$(tr ' ' _ </mnt/notice)"
umount /mnt
echo made | dd of=/dev/vdb bs=4096 seek=3 conv=fsync 2>/dev/null
EOF
    dd if=/tmp/script of=/tmp/first.img conv=notrunc 2>/dev/null
    try 0 run --disk first=/tmp/first.img /vms
    until [ "$(field lent)" = 0 ]; do sleep 0.5; done
    sed 's/^/os0: console /' /tmp/underpin-0/os0/consoles/reader.log
    say "directory kept=$(tr ' ' _ </srv/www/notice) made=$(tr -d '\000' </srv/made.img) bytes=$(wc -c </srv/made.img)"
    try 0 detach
}

# The hypervisor is replaced beneath VMs that are parked: refused where the image does not fit, or fails, which
# the VMs outlive; and then done.
replace() {
    number=$(field upgrades) images="other same"
    [ "$(option os0.replace yes)" = yes ] || return 0
    not_upgraded "$number" changed:no-image future:misfit
    for image in $images; do
        number=$((number + 1))
        upgraded "$image" $number true
    done
}

# VMs stand still in the memory that is lent to them while this system detaches, and go on, again and again.
park() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    dd if=/tmp/pattern of=/dev/vda bs=64k conv=fsync 2>/dev/null
    dd if=/tmp/pattern bs=64k count=32 2>/dev/null >/tmp/wanted
    wanted=$(sha256sum </tmp/wanted)
    try 0 attach
    mib=$(option os0.mib 16)
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    dd if=/dev/zero of=/tmp/data.img bs=1M count="$mib" 2>/dev/null
    try 0 run --disk first=/tmp/first.img --disk data=/tmp/data.img /vms
    echo "detach park" 2>/dev/null >/dev/underpin && say "failed VMs that run were parked"
    [ "$(field refusal) $(field parked)" = "vms-run false" ] || say "failed refusal $(cat /dev/underpin)"
    load "$(nproc)"
    parks=0 waited=0 entries=0
    while [ "$(field lent)" != 0 ] && [ $waited -lt 900 ]; do
        if [ $parks -lt 2 ] && [ "$(cat /tmp/underpin-0/os0/consoles/* 2>/dev/null | grep -c ready)" = 2 ] && /underpin detach --park; then
            parks=$((parks + 1))
            [ "$(field beneath) $(field parked)" = "0 true" ] || say "failed park $(cat /dev/underpin)"
            try 12 list
            replace
            owns_machine
            before=$(field entries)
            seq 0 9999 | sha256sum >/dev/null
            entries=$((entries + $(field entries) - before - 1))
            pair=0
            while [ $pair -lt "$(option os0.pairs 5)" ]; do
                echo attach >/dev/underpin || say "failed attach $pair $(field refusal)"
                echo "detach park" >/dev/underpin || say "failed detach $pair $(field refusal)"
                pair=$((pair + 1))
            done
            if [ $parks = 2 ]; then try 0 attach --clock "$(option os0.clock host)"; else try 0 attach; fi
            [ "$(field parked)" = false ] || say "failed unpark $(cat /dev/underpin)"
        fi
        sleep 1
        waited=$((waited + 1))
    done
    for log in /tmp/underpin-0/os0/consoles/*; do
        sed "s/^/os0: console $(basename "$log") /" "$log"
    done
    say "park parks=$parks entries=$entries upgrades=$(field upgrades) mib=$mib sha256=$(sha256sum </tmp/data.img | cut -d' ' -f1)"
    try 0 detach
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(jobs -p)
}

# up: what the VM's clock last said.
up() {
    sed -n 's/.*: up //p' $log | tail -n 1
}

# ahead: by how many hundredths of a second this system's clock is ahead of the VM's: the least of ten looks, as each
# can be late.
ahead() {
    least=9999999 looks=0 last=
    while [ $looks -lt 10 ]; do
        vm=$(up)
        read -r own rest </proc/uptime
        if [ "$vm" != "$last" ]; then
            last=$vm looks=$((looks + 1)) found=$((${own%.*}${own#*.} - ${vm%.*}${vm#*.}))
            [ $found -ge $least ] || least=$found
        fi
        sleep 0.05
    done
    echo $least
}

# A VM's clock keeps up with this system's while both want all CPUs; and it goes on by what was told when it was
# parked: where it stood, or with this system's.
clocks() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    {
        echo 'timeout 100 sh -c "while :; do :; done" &'
        echo 'while :; do read -r up rest </proc/uptime; say "up $up"; sleep 1; done'
    } | dd of=/tmp/first.img conv=notrunc 2>/dev/null
    try 0 run --disk first=/tmp/first.img /vms
    log=/tmp/underpin-0/os0/consoles/clock.log
    waited=0
    until grep -q 'up ' $log || [ $waited -ge 200 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    load_forks "$(nproc)"
    before=$(ahead)
    sleep 60
    say "clock shared drift=$(($(ahead) - before))"
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(jobs -p)
    for clock in continue host; do
        vm=$(up) vm=${vm%.*} own=$(cut -d. -f1 /proc/uptime)
        try 0 detach --park >/dev/null
        sleep 15
        try 0 attach --clock $clock >/dev/null
        sleep 4
        after=$(up)
        vm=$((${after%.*} - vm)) own=$(($(cut -d. -f1 /proc/uptime) - own))
        say "clock $clock behind=$((own - vm)) of=$own"
    done
    try 0 kill clock
    say "clocks ended"
}

# A VM whose memory is on a disk that this system serves is parked while it swaps.
swap() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    dd if=/dev/zero of=/tmp/spare.img bs=1M count=0 seek=256 2>/dev/null
    {
        echo 'head -c 40000000 /dev/urandom >/tmp/a; say filled; sum() { sha256sum </tmp/a; }'
        echo 'a=$(sum); for n in $(seq 12); do [ "$(sum)" = "$a" ] || exit; done; say same'
    } | dd of=/tmp/first.img conv=notrunc 2>/dev/null
    try 0 run --disk first=/tmp/first.img --disk spare=scratch:/tmp/spare.img /vms
    log=/tmp/underpin-0/os0/consoles/swaps.log
    parks=0 waited=0 swapped=0
    while [ "$(field lent)" != 0 ] && [ $waited -lt 600 ]; do
        /underpin mem swaps -o json >/tmp/mem 2>/dev/null && swapped=$(sed -n 's/.*"swapped": *\([0-9]*\).*/\1/p' /tmp/mem)
        if [ $parks -lt 4 ] && [ "${swapped:-0}" -gt 1000 ] && /underpin detach --park >/dev/null; then
            parks=$((parks + 1))
            sleep 2
            if [ $parks = 2 ]; then upgraded other 1 true; fi
            try 0 attach >/dev/null
        fi
        sleep 1
        waited=$((waited + 1))
    done
    sed 's/^/os0: console swaps /' $log
    try 0 detach >/dev/null
    say "swap parks=$parks swapped=$swapped"
}

# Parking waits for what VMs have asked of disks, and refuses after 10 s; then they go on.
drain() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach >/dev/null
    mib=$(option os0.mib 8)
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    try 0 run --disk first=/tmp/first.img --disk data=/dev/vda /vms
    waited=0 tried=0
    while [ "$(field lent)" != 0 ] && [ $waited -lt 600 ]; do
        if [ $tried = 0 ] && [ "$(head -c 4096 /dev/vda | tr -d '\000' | wc -c)" != 0 ]; then
            # As many writes as can be are under way, and take longer than that.
            sleep 8
            began=$(cut -d. -f1 /proc/uptime)
            try 8 detach --park
            tried=$(($(cut -d. -f1 /proc/uptime) - began))
            [ "$(field refusal) $(field parked)" = "in-use false" ] || say "failed refusal $(cat /dev/underpin)"
            try 0 list
        fi
        sleep 1
        waited=$((waited + 1))
    done
    sed 's/^/os0: console writer /' /tmp/underpin-0/os0/consoles/writer.log
    say "drain seconds=$tried sha256=$(head -c $((mib * 1048576)) /dev/vda | sha256sum | cut -d' ' -f1)"
    try 0 detach >/dev/null
}

# clock_is_right FIRST NAME: the date and the clock (from the FIRSTth of both on) that a VM shows next are this system's.
clock_is_right() {
    log=/tmp/underpin-0/os0/consoles/$2.log looks=0
    lines=$(grep -c ': clock ' "$log")
    until [ "$(grep -c ': clock ' "$log")" -gt $((lines + 1)) ] || [ $looks -ge 600 ]; do
        sleep 0.1
        looks=$((looks + 1))
    done
    now=$(date +%s)
    for shown in $(sed -n 's/.*: clock //p' "$log" | tail -n 1 | cut -d' ' -f"$1"-2); do
        [ $((now - shown)) -ge -2 ] && [ $((now - shown)) -le 5 ] || say "failed clock of $2: $shown at $now"
    done
}

# A VM that is parked has asked more of its disk than there are buffers for; a new image takes it over all the same, and
# its clock is right. Its date is, too, where time was to pass for it.
settled() {
    export UNDERPIN_CACHE=/cache
    insmod /underpin.ko || say "failed insmod"
    try 0 attach >/dev/null
    dd if=/dev/zero of=/tmp/first.img bs=1M count=1 2>/dev/null
    seq 0 1199999 | dd bs=1M count=6 iflag=fullblock >/tmp/data.img 2>/dev/null
    dd if=/tmp/data.img of=/tmp/base.img bs=1M count=1 2>/dev/null
    cp /tmp/base.img /tmp/own.img
    dd if=/dev/zero of=/tmp/room.img bs=1M count=4 2>/dev/null
    cat >/tmp/script <<'EOF'
await /dev/vdb
while :; do
    date=$(date +%s) clock=$(cat /sys/class/rtc/rtc0/since_epoch)
    say "clock $date $clock"
    # Time has passed without it: this was the second time, so all has been tried.
    [ $((clock - date)) -lt 4 ] || touch /tmp/enough
    sleep 1
done &
for n in $(seq 0 23); do
    (until [ -e /tmp/enough ]; do
        dd if=/dev/vdb of=/tmp/part$n bs=256k skip=$n count=1 iflag=direct 2>/dev/null || say failed read
    done) &
    readers="$readers $!"
done
say reading
wait $readers
# It shows its clock some more times, to whoever waits for that.
sleep 5
say "diskread ok sha256=$(for n in $(seq 0 23); do cat /tmp/part$n; done | sha256sum | cut -c-64)"
EOF
    dd if=/tmp/script of=/tmp/first.img conv=notrunc 2>/dev/null
    set -- --disk first=/tmp/first.img --disk data=/tmp/data.img --disk base=/tmp/base.img --disk own=/tmp/own.img
    try 0 run "$@" --disk room=scratch:/tmp/room.img /vms
    log=/tmp/underpin-0/os0/consoles/reader.log waited=0 parks=0
    until grep -q reading $log || [ $waited -ge 200 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    clock_is_right 1 reader
    for clock in host continue; do
        try 0 detach --park >/dev/null
        parks=$((parks + 1))
        upgraded other $parks true
        sleep 8
        try 0 attach --clock $clock >/dev/null
        clock_is_right $parks reader
    done
    waited=0
    until [ "$(cat /tmp/underpin-0/os0/consoles/* | grep -c -e 'diskread ok' -e 'transfers ok')" = 2 ] || [ $waited -ge 300 ]; do
        sleep 1
        waited=$((waited + 1))
    done
    sed 's/^/os0: console reader /' $log
    sed 's/^/os0: console every /' /tmp/underpin-0/os0/consoles/every.log
    say "settled parks=$parks upgrades=$(field upgrades) sha256=$(sha256sum </tmp/data.img | cut -d' ' -f1)"
    try 0 detach >/dev/null
}
