# shellcheck shell=sh
# Sends what every VM with this initial RAM disk can make to the next, and checks what it gets itself.

mkfifo /tmp/never
ip link set eth0 up
ip addr add "10.0.0.$(option address 1)/24" dev eth0
next=10.0.0.$(option next 1)
data() {
    for round in 1 2 3 4; do echo "$round"; cat /bin/busybox; done
}
(
    expected=$(data | md5sum)
    got=$(nc -l -p 5000 <>/tmp/never | md5sum)
    if [ "$got" = "$expected" ]; then say "net got ok"; else say "net got failed"; fi
) &
until ping -c 1 -W 1 "$next" >/dev/null; do :; done
until data | nc "$next" 5000 >/dev/null; do sleep 1; done
ping -c 3 -W 5 "$next" >/dev/null && say "net ping ok"
while :; do sleep 3600; done
