# shellcheck shell=sh
# What it costs: gaps, storms, switches, forks and services, counted. A part of init.

# longest REQUEST...: the longest that a program which reads the clock goes without it, in microseconds, as it
# asks for one after the other ten times.
longest() {
    longest=0 round=0
    while [ $round -lt 10 ]; do
        for request; do
            before=$EPOCHREALTIME
            echo "$request" >/dev/underpin
            after=$EPOCHREALTIME
            taken=$((${after%.*}${after#*.} - ${before%.*}${before#*.}))
            [ $taken -le $longest ] || longest=$taken
        done
        round=$((round + 1))
    done
    echo $longest
}

# The pause of a switch as a program feels it that asks for it, beside that of a question.
gap() {
    insmod /underpin.ko || say "failed insmod"
    echo 1 >/proc/sys/kernel/printk
    # Linux tests its ciphers first, in a thread (cryptomgr_test) that has its turns, of 1 to 3 ms, whenever this
    # program waits for a switch.
    sleep 3
    longest status >/dev/null
    question=$(longest status) switch=$(longest attach detach)
    try 0 upgrade /images/other >/dev/null
    say "gap status=$question switch=$switch upgrade=$(field pause)"
}

# leaves WHAT: so many detaches as os0.pairs= says, of which is told on how many CPUs each found a message, how often
# those were asked once more than all are, and how long the longest took.
leaves() {
    pair=0 least=99 most=0 again=0 longest=0
    while [ $pair -lt "$(option os0.pairs 10)" ]; do
        echo attach >/dev/underpin || say "failed attach $1 $pair $(field refusal)"
        tries=$(field retries) start=$EPOCHREALTIME
        echo detach >/dev/underpin || say "failed detach $1 $pair $(field refusal)"
        end=$EPOCHREALTIME
        [ "$(field beneath)" = 0 ] || say "failed not detached $1 $pair"
        taken=$((${end%.*}${end#*.} - ${start%.*}${start#*.})) held=$(field held)
        tries=$(($(field retries) - tries - held))
        [ "$held" -ge $least ] || least=$held
        [ "$held" -le $most ] || most=$held
        [ $tries -le $again ] || again=$tries
        [ $taken -le $longest ] || longest=$taken
        pair=$((pair + 1))
    done
    say "storm $1 pairs=$pair held=$least-$most again=$again longest=$longest"
}

# A message comes to CPUs at the moment that they are to leave, each from a disk's queue of its own: to all of them, to
# one, and to all while each reads from the disk all the time.
storm() {
    insmod /underpin.ko || say "failed insmod"
    echo 1 >/proc/sys/kernel/printk
    cpu=0 all='' one=''
    while [ $cpu -lt "$(nproc)" ]; do
        irq=$(sed -n "s/^ *\([0-9]*\):.*virtio0-req\.$cpu\$/\1/p" /proc/interrupts)
        [ "$(cat "/proc/irq/$irq/effective_affinity_list")" = $cpu ] || say "failed interrupt of $cpu"
        all=$all,$irq
        if [ $cpu = 3 ]; then one=$one,$irq; else one=$one,0; fi
        cpu=$((cpu + 1))
    done
    insmod /rogue.ko "storm=${all#,}" || say "failed insmod of a rogue"
    leaves all
    echo "${one#,}" >/sys/module/rogue/parameters/storm
    leaves one
    echo "${all#,}" >/sys/module/rogue/parameters/storm
    cpu=0
    while [ $cpu -lt "$(nproc)" ]; do
        while :; do taskset -c $cpu dd if=/dev/vda of=/dev/null bs=512 count=1000 iflag=direct 2>/dev/null; done &
        cpu=$((cpu + 1))
    done
    leaves busy
    # shellcheck disable=SC2046 # one word per process
    kill -9 $(jobs -p)
    say "storm ended"
}

# mark NAME: with the kernel's own time, which counts instructions on a machine that does.
mark() {
    echo "os0: mark $1" >/dev/kmsg
}

# What varies with addresses (how many page faults a program takes) would hide what EL2 costs.
measured() {
    echo 0 >/proc/sys/kernel/randomize_va_space
    mark "$1-cpu"
    seq 0 99999 | sha256sum >/dev/null
    mark "$1-fork"
    count=0
    while [ $count -lt 100 ]; do
        /bin/busybox true
        count=$((count + 1))
    done
    mark "$1-end"
}

# The same work before, while and after EL2 is beneath, and what the switches took.
cost() {
    measured warm
    measured detached
    if [ -e /underpin.ko ]; then
        insmod /underpin.ko || say "failed insmod"
        for round in 1 2 3; do
            echo attach >/dev/underpin
            say "attach $round counts=$(field counts) pause=$(field pause)"
            before=$(field entries)
            [ $round != 3 ] || measured attached
            [ $round != 3 ] || say "attached entries=$(($(field entries) - before))"
            echo detach >/dev/underpin
            say "detach $round counts=$(field counts) pause=$(field pause)"
        done
        measured again
    fi
    say "cost measured"
}

# What switches took, three times there and back, and nothing else.
switches() {
    insmod /underpin.ko || say "failed insmod"
    for round in 1 2 3; do
        for request in attach detach; do
            echo $request >/dev/underpin || say "failed $request $round $(field refusal)"
            say "$request $round counts=$(field counts) pause=$(field pause)"
        done
    done
    say "switches told"
}

# How long switches take in all, with CPUs that have nothing else to do.
pause() {
    insmod /underpin.ko || say "failed insmod"
    longest=0
    for pair in 1 2 3 4 5 6 7 8 9 10; do
        for request in attach detach; do
            echo $request >/dev/underpin || say "failed $request $pair $(field refusal)"
            [ "$(field pause)" -le $longest ] || longest=$(field pause)
        done
    done
    say "paused pause=$longest"
}

# The same forks in turn, detached and attached.
forks() {
    echo 0 >/proc/sys/kernel/randomize_va_space
    insmod /underpin.ko || say "failed insmod"
    for phase in warm warm detached attached detached attached detached attached detached attached detached; do
        [ $phase != attached ] || echo attach >/dev/underpin
        mark "$phase"
        count=0
        while [ $count -lt 200 ]; do
            /bin/busybox true
            count=$((count + 1))
        done
        mark "$phase-end"
        [ $phase != attached ] || echo detach >/dev/underpin
    done
}

# What the kernel's services cost: as this system was started, with the hypervisor beneath, without it again, and in
# a VM while this system does nothing.
services() {
    export UNDERPIN_CACHE=/cache
    echo 0 >/proc/sys/kernel/randomize_va_space
    echo 1 >/proc/sys/kernel/printk
    sleep 2
    if [ ! -e /underpin.ko ] || ! insmod /underpin.ko 2>/dev/null; then
        say "services native"
        /services /bin/busybox /dev/vda
        say "services end"
        return
    fi
    for place in detached attached again; do
        [ $place != attached ] || try 0 attach >/dev/null
        [ $place != again ] || try 0 detach >/dev/null
        sleep 1
        say "services $place"
        /services /bin/busybox /dev/vda
    done
    try 0 attach >/dev/null
    for name in first program; do
        dd if=/dev/zero of=/tmp/$name.img bs=1M count=1 2>/dev/null
    done
    dd if=/services of=/tmp/program.img conv=notrunc 2>/dev/null
    {
        echo 'echo 0 >/proc/sys/kernel/randomize_va_space; cat /dev/vdb >/tmp/services; chmod +x /tmp/services'
        echo 'sleep 2; /tmp/services /bin/busybox'
    } | dd of=/tmp/first.img conv=notrunc 2>/dev/null
    try 0 run --disk first=/tmp/first.img --disk program=/tmp/program.img /vms >/dev/null
    waited=0
    until [ "$(field lent)" = 0 ] || [ $waited -ge 100 ]; do
        sleep 10
        waited=$((waited + 1))
    done
    say "services vm"
    sed 's/^/os0: console /' /tmp/underpin-0/os0/consoles/services.log
    say "services end"
}
