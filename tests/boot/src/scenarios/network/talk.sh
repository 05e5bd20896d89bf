# shellcheck shell=sh
# Sends and checks what every VM with this initial RAM disk can make: address= and rounds= of the
# command line say who this is, and how much.

address=$(option address 1)
rounds=$(option rounds 1)

# What is sent in each round, behind a line with its number: rounds begin at other places of pages and frames.
cat /bin/busybox /modules/* >/tmp/part
bytes=$(wc -c </tmp/part)

sum() {
    crc32 | cut -d' ' -f1
}

# Programs that nc starts with the connection as their standard input and output: nc itself moves a KiB at a time,
# and a pipe behind it wakes its reader for each.
cat >/tmp/give <<'END'
# give ROUNDS
for round in $(seq "$1"); do
    printf 'round %09d\n' "$round"
    cat /tmp/part || exit
done
END
cat >/tmp/take <<'END'
# take ROUNDS BYTES SUM FILE: holds each round against what it must be; FILE.said is ok, or what is wrong.
for round in $(seq "$1"); do
    number=$(dd bs=16 count=1 iflag=fullblock 2>/dev/null)
    dd of="$4" bs="$2" count=1 iflag=fullblock 2>/dev/null
    is="$number $(crc32 <"$4" | cut -d' ' -f1)"
    should="$(printf 'round %09d' "$round") $3"
    [ "$is" = "$should" ] || { echo "$is, not $should" >"$4.said"; exit 1; }
done
[ -z "$(dd bs=1 count=1 2>/dev/null)" ] || { echo "more than $1 rounds" >"$4.said"; exit 1; }
echo ok >"$4.said"
END

# check NAME EXPECTED GOT
check() {
    if [ "$2" = "$3" ]; then say "net $1 ok"; else say "net $1 failed expected=$2 got=$3"; fi
}

# What floating point gives: EL2 copies frames by the registers that this is done in.
sums() {
    awk 'BEGIN { for (n = 1; n <= 20000; n++) s = (s + n / 7 + n / 3) * 0.75 - n * 0.125 / 1.5; printf "%.17g", s }'
}

ip link set lo up
ip link set eth0 up
ip addr add "10.0.0.$address/24" dev eth0
expected=$(sum </tmp/part)
set -- /sys/class/net/eth0/queues/tx-*
say "net bytes $((rounds * (bytes + 16))) link $(cat /sys/class/net/eth0/address) mtu $(cat /sys/class/net/eth0/mtu) queues $#"

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
            nc -l -p 500$client -e /bin/busybox sh /tmp/take "$rounds" "$bytes" "$expected" /tmp/got.$client
            check "got $client" ok "$(cat /tmp/got.$client.said)"
            nc -l -p 600$client -e /bin/busybox sh /tmp/give "$rounds"
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
    until nc 10.0.0.1 "500$address" -e /bin/busybox sh /tmp/give "$rounds"; do sleep 1; done
    tries=0
    until nc 10.0.0.1 "600$address" -e /bin/busybox sh /tmp/take "$rounds" "$bytes" "$expected" /tmp/got 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 30 ] || break
        sleep 1
    done
    check back ok "$(cat /tmp/got.said)"
fi
