# shellcheck shell=sh
# Sends and checks what every VM with this initial RAM disk can make: address= and rounds= of the
# command line say who this is, and how much.

address=$(option address 1)
rounds=$(option rounds 1)

# some MiB for each round, no two alike
data() {
    for round in $(seq "$rounds"); do
        echo "round $round"
        cat /bin/busybox /modules/*
    done
}

sum() {
    crc32 | cut -d' ' -f1
}

# check NAME EXPECTED GOT
check() {
    if [ "$2" = "$3" ]; then say "net $1 ok"; else say "net $1 failed expected=$2 got=$3"; fi
}

# What floating point gives: EL2 copies frames by the registers that this is done in.
sums() {
    awk 'BEGIN { for (n = 1; n <= 20000; n++) s = (s + n / 7 + n / 3) * 0.75 - n * 0.125 / 1.5; printf "%.17g", s }'
}

# busybox's nc ends when the other side has nothing more to say: whoever only listens has a standard input
# that never ends.
mkfifo /tmp/never
ip link set lo up
ip link set eth0 up
ip addr add "10.0.0.$address/24" dev eth0
expected=$(data | sum)
set -- /sys/class/net/eth0/queues/tx-*
say "net bytes $(data | wc -c) link $(cat /sys/class/net/eth0/address) mtu $(cat /sys/class/net/eth0/mtu) queues $#"

if [ "$address" = 1 ]; then
    # Whoever is pinged answers from an interrupt, in the middle of it: on either CPU. Streams go before it.
    first=$(sums)
    calculate() {
        while :; do [ "$(sums)" = "$first" ] || touch /tmp/wrong; done
    }
    calculate &
    calculating=$!
    calculate &
    calculating="$calculating $!"
    # shellcheck disable=SC2086 # several
    renice -n 19 -p $calculating >/dev/null
    # A stream that is long is not to wait for that.
    # shellcheck disable=SC2086
    [ "$rounds" = 1 ] || (sleep 20 && kill $calculating) &
    clients=
    for client in 2 3; do
        (
            got=$(nc -l -p 500$client <>/tmp/never | sum)
            check "got $client" "$expected" "$got"
            data | nc -l -p 600$client >/dev/null
        ) &
        clients="$clients $!"
    done
    # shellcheck disable=SC2086 # several
    wait $clients
    # shellcheck disable=SC2086
    kill $calculating
    if [ -e /tmp/wrong ]; then say "net sums differ"; else say "net sums $first ok"; fi
    # Until the clients have heard the last of it.
    sleep 5
else
    tries=0
    until ping -c 1 -W 1 10.0.0.1 >/dev/null || [ $tries = 240 ]; do tries=$((tries + 1)); done
    say "net ping after $tries"
    ping -A -q -s 1400 -c 1000 10.0.0.1 >/dev/null
    # The other client goes first.
    until data | nc 10.0.0.1 "500$address" >/dev/null; do sleep 1; done
    tries=0
    until got=$(nc 10.0.0.1 "600$address" <>/tmp/never 2>/dev/null | sum) && [ "$got" = "$expected" ]; do
        tries=$((tries + 1))
        [ $tries -lt 30 ] || break
        sleep 1
    done
    check back "$expected" "$got"
fi
