# shellcheck shell=sh
# Gets an address, asks a web server outside, and serves.

cat >/tmp/dhcp <<'END'
#!/bin/busybox sh
[ "$1" = bound ] || exit 0
ip addr add "$ip/$mask" dev "$interface"
ip route add default via "$router"
echo "$ip" >/tmp/address
END
chmod +x /tmp/dhcp
ip link set lo up
ip link set eth0 up
udhcpc -i eth0 -q -t 20 -T 3 -n -s /tmp/dhcp || say "net failed dhcp"
say "net address $(cat /tmp/address)"
tries=0
until heard=$(wget -q -T 10 -O - "10.0.2.2:PORT/") || [ $tries = 10 ]; do tries=$((tries + 1)); done
say "net heard $heard"
mkdir -p /tmp/www
echo "GREETING" >/tmp/www/index.html
httpd -p 80 -h /tmp/www || say "net failed httpd"
say "net serves"
while :; do sleep 3600; done
