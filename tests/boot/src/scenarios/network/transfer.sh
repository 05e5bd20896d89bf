# shellcheck shell=sh
# The first takes what comes; the other sends mib= each time that somebody types a line.

address=$(option address 1)
mkfifo /tmp/never
ip link set eth0 up
ip addr add "10.0.0.$address/24" dev eth0
if [ "$address" = 1 ]; then
    say "net serves"
    while :; do nc -l -p 5000 <>/tmp/never >/dev/null; done
fi
until ping -c 1 -W 1 10.0.0.1 >/dev/null; do :; done
say "net ready"
while read -r _; do
    until began=$EPOCHREALTIME && head -c "$(($(option mib 1) * 1048576))" /dev/zero | nc 10.0.0.1 5000 >/dev/null; do sleep 1; done
    ended=$EPOCHREALTIME
    say "net sent us=$((${ended%.*}${ended#*.} - ${began%.*}${began#*.}))"
done
