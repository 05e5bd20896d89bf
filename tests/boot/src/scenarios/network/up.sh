# shellcheck shell=sh
# Is there, and says nothing on the network by itself.

echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
ip link set eth0 up
sleep 1
say "net up"
before=1
while :; do
    now=$(cat /sys/class/net/eth0/carrier)
    [ "$now" = "$before" ] || say "net carrier $now"
    before=$now
    sleep 1
done
