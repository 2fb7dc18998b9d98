# Read by `cluster` and `sentinel`: starts servers of Redis in directories of their own below a temporary one,
# and ends them all with the script.

fail() {
    echo "$name: $*" >&2
    exit 1
}

for program in redis-server redis-cli; do
    command -v "$program" >/dev/null ||
        fail "$program is not installed; on Debian: apt-get install redis-server redis-tools"
done

host=127.0.0.1
state=$(mktemp -d "${TMPDIR:-/tmp}/rollcall-$name.XXXXXX")
waiting=
bus=${bus-}

# A server that was killed and started again by hand is no child of this shell, so every server is found by its file.
# An id in an old file may be that of another process by now: only a process in that directory is ended. A server that got
# the same Ctrl-C may end by itself meanwhile.
end_all() {
    trap - EXIT
    trap '' HUP INT TERM
    for file in "$state"/*/*.pid; do
        pid=$(cat "$file" 2>/dev/null) || continue
        [ "$(readlink "/proc/$pid/cwd")" != "${file%/*}" ] || kill -KILL "$pid" 2>/dev/null || true
    done
    [ -z "$waiting" ] || kill "$waiting" 2>/dev/null || true
    wait
    rm -rf "$state" 2>/dev/null || { sleep 1 && rm -rf "$state"; }
}
trap end_all EXIT
trap 'exit 0' HUP INT TERM

# has_ended PID: a child that has ended is there until the shell waits for it.
has_ended() {
    ! grep -qs '^State:.[^ZX]' "/proc/$1/status"
}

# start PORT FILE LINES [MODE]: a server with this file and these lines after it.
start() {
    mkdir "$state/$1"
    cd "$state/$1"
    { cat "$2" && printf 'port %s\nbind %s\ndir %s\npidfile redis.pid\n%s\n' "$1" "$host" "$state/$1" "$3"; } >redis.conf
    redis-server redis.conf ${4-} >log 2>&1 &
    echo $! >started.pid
    cd "$state"
}

# until_started PORT: the server accepts connections; where it cannot, the last lines of its log say why.
until_started() {
    pid=$(cat "$state/$1/started.pid")
    until grep -Eqs 'Ready to accept connections|\+monitor' "$state/$1/log"; do
        if has_ended "$pid"; then
            tail -n 3 "$state/$1/log" >&2
            ! grep -Eq 'in use|Failed listening' "$state/$1/log" || fail "port $1${bus:+ or $(($1 + bus)), that of the cluster bus,} is taken; choose others: PORT=$((first + 100))"
            fail "the server at port $1 did not start"
        fi
        sleep 0.05
    done
}

# until_says WHAT COMMAND...: its output has that text, within half a minute.
until_says() {
    what=$1
    shift
    tries=0
    until "$@" 2>&1 | grep -q "$what"; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || fail "no $what within half a minute: $*"
        sleep 0.1
    done
}

# until_ctrl_c: the shell waits, so that a signal is handled at once. What it waits for ends with it, also after SIGKILL.
until_ctrl_c() {
    # With the output of this shell it would end as soon as the reader of that does.
    tail --pid=$$ -f /dev/null >/dev/null &
    waiting=$!
    wait "$waiting"
}
