# shellcheck shell=bash
# shellcheck disable=SC2154 # report.sh sets `cache`
# Sourced by set-up: runs its steps one by one and shows how far it is, with a bar on a terminal and plain lines elsewhere.

# note SENTENCE: tells people what is going on.
note() {
    printf 'set-up: %s\n' "$*" >&2
}

# bar NUMBER COUNT TITLE SECONDS: redraws the bar in place, cut to the terminal's width.
bar() {
    local width=24 filled line
    filled=$(((($1 - 1) * width) / $2))
    printf -v line 'set-up [%*s%*s] %d/%d %s %d s' "$filled" '' $((width - filled)) '' "$1" "$2" "$3" "$4"
    line="${line:0:8}$(printf '%*s' "$filled" '' | tr ' ' '#')${line:8+filled}"
    printf '\r\033[K%s' "${line:0:${COLUMNS:-$(tput cols 2>/dev/null || echo 80)}-1}" >&2
}

# tick NUMBER COUNT TITLE: redraws the bar twice a second for as long as set-up lives.
tick() {
    local start=$SECONDS
    while kill -0 $$ 2>/dev/null; do
        bar "$@" $((SECONDS - start))
        sleep 0.5
    done
}

# hide: takes the bar away.
hide() {
    if [[ -n ${ticker:-} ]]; then
        kill "$ticker" 2>/dev/null || true
        wait "$ticker" 2>/dev/null || true
        ticker=
        printf '\r\033[K' >&2
    fi
}

# run_step NUMBER COUNT TITLE COMMAND: runs one step with its output in a log, and ends set-up when it fails.
run_step() {
    local log=$cache/log/$1.log status=0
    if [[ -t 2 ]]; then
        tick "$1" "$2" "$3" &
        ticker=$!
    else
        note "$1/$2 $3"
    fi
    (eval "$4") >"$log" 2>&1 </dev/null || status=$?
    hide
    ((status == 0)) || give_up "$3" "$log" "$status"
}

# give_up TITLE LOG STATUS: repeats the step's own sentence, or makes one from the last thing that it said.
give_up() {
    local sentence
    sentence=$(grep '^underpin: ' "$2" | tail -n 1 || true)
    [[ -n $sentence ]] ||
        sentence="underpin: set-up failed at '$1', because it ended with status $3 ($(tail -n 1 "$2")); see $2, then run the same command again"
    printf '%s\n' "$sentence" >&2
    exit 1
}

# finish COUNT: says that all is ready.
finish() {
    note "ready after $1 step$([[ $1 == 1 ]] || echo s) in $SECONDS s"
}

trap hide EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
