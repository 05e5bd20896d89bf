# What the VM that may ask everything asks, at random from a seed. Read by assets/initramfs/init.
state=$(option seed 1)

# below N: leaves a number below N in $number.
below() {
    state=$(((state * 1103515245 + 12345) & 2147483647))
    number=$((state / 256 % $1))
}

# any WORD...: leaves one of the words in $word.
any() {
    below $#
    shift $number
    word=$1
}

port() {
    file=$(grep -l org.underpin /sys/class/virtio-ports/*/name)
    echo "/dev/$(basename "$(dirname "$file")")"
}

ask() {
    /underpin "$@"
}

# Frames that are none: noise, and a header with whatever behind it.
malformed() {
    p=$(port)
    below 3000
    case $((number % 3)) in
    0) head -c $number /dev/urandom >"$p" ;;
    1) { printf 'UPCT'; head -c $((number % 64)) /dev/urandom; } >"$p" ;;
    2) printf 'UPCT\002\000\000\000\001\000\000\000\377\377\000\000' >"$p" ;;
    esac
}

turn() {
    any first second watcher control victim nobody
    below 24
    case $number in
    0) ask list ;;
    1) ask list -o json ;;
    2) ask show "$word" ;;
    3) ask mem ;;
    4) ask mem why "$word" ;;
    5) ask numa ;;
    6) ask numa why "$word" ;;
    7) ask metrics ;;
    8) ask trace "$word" --for 1s ;;
    9) ask machine ;;
    10) ask nodes ;;
    11 | 12)
        any first second victim
        below 256
        ask set "$word" --weight $((number + 1))
        ;;
    13)
        any first second victim
        below 4
        ask set "$word" --cap $((number * 40))
        ;;
    14)
        below 128
        ask set victim --base ${number}MiB
        ;;
    15) ask pause victim ;;
    16) ask resume victim ;;
    17 | 18) ask start victim ;;
    19) ask kill victim ;;
    20) ask reset victim ;;
    21) ask mem reclaim "$word" ;;
    22) ask mem recount ;;
    23) malformed ;;
    esac
}

turns=0
while :; do
    turn >/dev/null 2>&1
    turns=$((turns + 1))
    [ $((turns % 16)) != 0 ] || echo "adversary: $turns requests"
done
