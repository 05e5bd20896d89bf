# What the Linux guest among the adversaries does: see adversary.c. Read by assets/initramfs/init.
await /dev/vdc
ip link set lo up
for device in /sys/class/net/eth*; do
    device=${device##*/}
    ip link set "$device" up
    ip addr add "10.0.0.$(($(option seed 1) % 200 + 2))/24" broadcast + dev "$device"
done
# Where it is killed for want of memory, another one goes on.
seed=$(option seed 1)
while :; do
    /adversary "$seed" 0 /dev/vdb /dev/vdc /dev/vdd
    seed=$((seed + 1))
done
